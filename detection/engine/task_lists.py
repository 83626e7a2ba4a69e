"""An agent's own list of tasks, as it is compared: which task stands where, whatever the spelling."""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Arguments
from detection.engine.identity import structured
from detection.engine.tables import table

TOOLS = frozenset(tool for row in table("task_lists") for tool in row["tools"])
"""Names of the tools, in lower case with underscores or as their host writes them."""
_DROPPED = frozenset(name for row in table("task_lists") for name in row["dropped"])
# Lists of tasks have lists of steps, and not deeper; far from the limit of recursion.
_MAX_DEPTH = 8


def compared(arguments: Arguments) -> Arguments:
    """Return the list without what says nothing about its tasks, in lower case and with single spaces."""
    if not isinstance(arguments, dict):
        return arguments
    return {name: _plain(value, 0) for name, value in arguments.items() if name not in _DROPPED}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str) and depth < _MAX_DEPTH:
        # Some models write the list as text.
        inner = structured(value)
        return " ".join(value.lower().split()) if inner is value else _plain(inner, depth + 1)
    if depth >= _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, depth + 1) for name, item in value.items() if name not in _DROPPED}
    return value
