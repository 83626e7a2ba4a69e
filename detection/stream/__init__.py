"""Messages to live pages: typed hints, group names, and the only publisher. Hints carry no data, only what to reload."""
