"""Alert routes, what was sent and silences."""
