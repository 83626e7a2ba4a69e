"""What is deleted, by age or on request, and what mentions it."""
