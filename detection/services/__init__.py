"""Writes: one function per thing that can happen, each with its transaction, locks and after-commit work."""
