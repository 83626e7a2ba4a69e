"""Reads: every list, page and lookup, for the API and the screens. They return frozen rows and write nothing."""
