"""Maintenance: retention, database rights, hourly counts, disk space, heartbeats, first start."""
