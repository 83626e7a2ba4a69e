"""Hooks of coding agents: where their settings are, how to install hooks there, and whether they work."""
