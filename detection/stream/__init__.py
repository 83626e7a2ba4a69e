"""What the live pages are told: typed hints, group names, and the only publisher. Hints carry no data, only where to look."""
