"""What people do with loops, and what that changes of their incidents, which detection opens and ends."""
