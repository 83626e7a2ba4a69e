"""Reads: every list, page and lookup, for the API and the screens alike. Frozen rows go out, nothing is written."""
