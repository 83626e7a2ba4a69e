"""Calls on hold and their answers."""
