"""Commands for those who change LoopGuard: tests, checks, lock files, releases.

Part of the repository and never of an installation. `manage.py` runs them before Django is loaded.
"""
