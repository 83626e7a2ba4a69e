"""Runs LoopGuard on one machine: the embedded servers and LoopGuard's own processes.

Knows operating-system processes, folders and ports. Does not belong here: Django, the
database's content, what any child does once it runs. Nothing in this package imports Django,
so a supervisor stays small and outlives a broken application.
"""
