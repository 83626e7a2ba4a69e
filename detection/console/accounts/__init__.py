"""Signing in, the account and preferences."""
