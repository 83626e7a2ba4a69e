"""Backends of the gateway: who may change them, and what the gateway reads of them."""
