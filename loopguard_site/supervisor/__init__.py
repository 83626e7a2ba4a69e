"""Runs LoopGuard on one machine: the embedded servers and LoopGuard's own processes.

Handles operating-system processes, folders and ports. Does not belong here: Django, the
content of the database, the work of the child processes. Nothing in this package imports Django,
so the supervisor stays small and survives a broken application.
"""
