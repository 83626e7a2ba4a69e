"""Comparison of settings: which changes weaken detection.

The services decide who has to give a reason for a weaker setting.
"""

from __future__ import annotations

from typing import Any

from detection.engine.fields import FIELDS, LADDERS, RUNGS, Field
from detection.engine.policy import Policy


def is_weaker(field: Field, old: Any, new: Any) -> bool:
    """Return whether a change of one setting lets more calls through."""
    if field.type == "ladder":
        return _strength(new) < _strength(old)
    order = field.strictest_first
    if order:
        return order.index(new) > order.index(old)
    if field.weakens in ("on", "off"):
        return bool(new) != bool(old) and bool(new) == (field.weakens == "on")
    if field.weakens == "up":
        return _number(field, new) > _number(field, old)
    return field.weakens == "down" and _number(field, new) < _number(field, old)


def strictest_rung(ladder: Any) -> str:
    """Return the strictest reaction of a ladder, which is compared before the others."""
    return RUNGS[max(_ranks(ladder))]


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
        and is_weaker(field, field.effective(before.values), field.effective(after.values))
    ]
    own = [name for name in weaker if name in named]
    return own if len(own) == len(weaker) else ["preset", *own]


def _number(field: Field, value: Any) -> float:
    is_off = field.minimum == 0 and field.zero_is_off and not value
    return float("inf") if is_off else float(value)


def _strength(ladder: Any) -> tuple[int, float]:
    ranks = _ranks(ladder)
    return (max(ranks), sum(ranks) / len(ranks))


def _ranks(ladder: Any) -> list[int]:
    rungs = LADDERS.get(ladder, ()) if isinstance(ladder, str) else tuple(ladder)
    return [RUNGS.index(rung) for rung in rungs] or [0]
