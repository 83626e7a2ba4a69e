"""Keeps the index that contents are searched with. Searching itself is a read: `selectors.search`."""
