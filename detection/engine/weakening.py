"""What makes detection milder: one value against another, and one set of resolved settings against another.

Who has to say why, and where that is kept, belongs to the services.
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
"""The choices that can be ordered. A preset is judged by the values that it brings."""

_ZERO_IS_ZERO = frozenset(("budget_max_extensions",))
"""Everywhere else a zero that is allowed means "no limit" or "never"."""


def is_milder(field: Field, old: Any, new: Any) -> bool:
    """Tell whether a change of one setting lets more through."""
    if field.type == "ladder":
        return _strength(new) < _strength(old)
    if field.name in STRICTEST_FIRST:
        order = STRICTEST_FIRST[field.name]
        return order.index(new) > order.index(old)
    if field.loosens in ("on", "off"):
        return bool(new) != bool(old) and bool(new) == (field.loosens == "on")
    if field.loosens == "up":
        return _number(field, new) > _number(field, old)
    return field.loosens == "down" and _number(field, new) < _number(field, old)


def loosened(before: Policy, after: Policy, named: frozenset[str]) -> list[str]:
    """Name the settings that are milder in `after`.

    Parameters
    ----------
    named : frozenset of str
        What the tier itself names, before or after; whatever else became milder did so by the preset, and is told as that.
    """
    milder = [
        name
        for name, field in FIELDS.items()
        if before.values[name] != after.values[name]
        and is_milder(field, before.values[name], after.values[name])
    ]
    own = [name for name in milder if name in named]
    return own if len(own) == len(milder) else ["preset", *own]


def _number(field: Field, value: Any) -> float:
    is_switch = field.minimum == 0 and field.name not in _ZERO_IS_ZERO
    return float("inf") if is_switch and not value else float(value)


def _strength(ladder: Any) -> tuple[int, float]:
    rungs = LADDERS.get(ladder, ()) if isinstance(ladder, str) else tuple(ladder)
    ranks = [RUNGS.index(rung) for rung in rungs] or [0]
    return (max(ranks), sum(ranks) / len(ranks))
