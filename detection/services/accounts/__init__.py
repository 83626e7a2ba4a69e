"""Accounts: sign-ins and their throttle."""
