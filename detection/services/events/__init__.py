"""Rows of stored events, and what is read back from them."""
