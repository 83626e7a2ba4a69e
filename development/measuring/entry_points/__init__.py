"""Plays scenarios through the interfaces of a running installation, and nothing else of it."""
