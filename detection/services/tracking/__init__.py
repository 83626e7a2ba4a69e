"""Incidents, loops and approvals as a folded session writes them, under its lock."""
