"""The engine: a pure fold over tool calls and results that detects when an agent is in a loop.

It uses no Django, input or output, clock, randomness or logging. Other programs use it through `Guard`.
"""

from detection.engine.library import Guard

__all__ = ["Guard"]
