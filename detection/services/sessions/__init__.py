"""Sessions: the row lock, the tracker state, folding, and actions of people."""
