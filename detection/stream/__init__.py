"""Messages to live pages: typed hints, group names, and the only publisher. Hints only say what to reload."""
