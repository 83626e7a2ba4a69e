"""Backends of the gateway, its traffic and prices."""
