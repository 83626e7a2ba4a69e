"""What loops now, what needs attention and what is contained."""
