"""Scripted agents that play believable runs, healthy and stuck, through the public API.

Everything here is a client: it imports nothing of the server and knows no database. All of its texts are our own.
"""
