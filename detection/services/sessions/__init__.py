"""Sessions: the row lock, the tracker state, folding, and what people do with a session."""
