"""Exceptions: loops that people declared to be intended."""
