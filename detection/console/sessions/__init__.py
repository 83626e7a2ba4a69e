"""The list of sessions and a session: map, trace, calls."""
