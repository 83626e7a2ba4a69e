"""Containments: create, preview and lift them, and bring sessions and held calls in line with them."""
