"""LoopGuard's application: the pure engine below, and the packages that store, serve and show what it finds."""

__version__ = "0.1.0"
