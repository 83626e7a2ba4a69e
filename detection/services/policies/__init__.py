"""Overrides, tool rules and message templates."""
