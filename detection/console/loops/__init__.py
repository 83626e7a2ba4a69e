"""The list of loops, a loop and its runs."""
