"""Backends, tokens, prices and grants of the gateway."""
