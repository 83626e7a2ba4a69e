"""Learns from labelled incidents: suggests policy changes, which a person accepts or rejects.

Nothing changes by itself.
"""
