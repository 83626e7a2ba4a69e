"""Comparison of settings: which changes weaken detection.

The services decide who has to give a reason for a weaker setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from detection.engine.fields import FIELDS, LADDERS, RUNGS, Field
from detection.engine.policy import Policy

STRICTEST_FIRST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "counting_scope": ("session", "run"),
        "identity": ("canonical", "raw"),
        "escalation_scope": ("session", "loop"),
        "reset_after_detection": ("none", "loop", "all"),
        "unattended_reaction": ("stop", "block", "allow", "disable"),
        "repeat_scope": ("run", "window", "consecutive"),
        "ttl_from": ("never", "previous", "entry"),
    }
)
"""Choices that have an order. A preset is compared by its values."""

_ZERO_IS_ZERO = frozenset(("budget_max_extensions",))
"""For every other setting that may be zero, zero means "no limit" or "never"."""


def is_weaker(field: Field, old: Any, new: Any) -> bool:
    """Return whether a change of one setting lets more calls through."""
    if field.type == "ladder":
        return _strength(new) < _strength(old)
    if field.name in STRICTEST_FIRST:
        order = STRICTEST_FIRST[field.name]
        return order.index(new) > order.index(old)
    if field.weakens in ("on", "off"):
        return bool(new) != bool(old) and bool(new) == (field.weakens == "on")
    if field.weakens == "up":
        return _number(field, new) > _number(field, old)
    return field.weakens == "down" and _number(field, new) < _number(field, old)


def weakened(before: Policy, after: Policy, named: frozenset[str]) -> list[str]:
    """List the settings that are weaker in `after`.

    Parameters
    ----------
    named : frozenset of str
        The settings that the changed override itself contains, before or after. Every other weaker setting comes from
        the preset, and is listed as `preset`.
    """
    weaker = [
        name
        for name, field in FIELDS.items()
        if before.values[name] != after.values[name]
        and is_weaker(field, before.values[name], after.values[name])
    ]
    own = [name for name in weaker if name in named]
    return own if len(own) == len(weaker) else ["preset", *own]


def _number(field: Field, value: Any) -> float:
    is_switch = field.minimum == 0 and field.name not in _ZERO_IS_ZERO
    return float("inf") if is_switch and not value else float(value)


def _strength(ladder: Any) -> tuple[int, float]:
    rungs = LADDERS.get(ladder, ()) if isinstance(ladder, str) else tuple(ladder)
    ranks = [RUNGS.index(rung) for rung in rungs] or [0]
    return (max(ranks), sum(ranks) / len(ranks))
