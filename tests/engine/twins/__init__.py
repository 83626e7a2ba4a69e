"""Slow, obvious twins of the engine: every answer is worked out anew from the whole history, nothing is remembered.

They are written from the documentation of each detector and share no code with it. Where a detector and its twin
disagree, one of them is wrong.
"""
