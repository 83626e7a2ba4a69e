"""LoopGuard's application: the pure engine below, and the rooms that store, serve and show what it finds."""
