"""Scripted agents, healthy and stuck, that use the public API.

Everything here is a client: it imports nothing of the server and uses no database.
"""
