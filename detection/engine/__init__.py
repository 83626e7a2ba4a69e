"""The engine: a pure fold over tool calls and results that says when an agent is going round in circles.

No Django, no input or output, no clock, no randomness, no logging. `Guard` is its face for other programs.
"""

from detection.engine.library import Guard

__all__ = ["Guard"]
