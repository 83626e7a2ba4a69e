"""Connecting agents, imports and what arrives."""
