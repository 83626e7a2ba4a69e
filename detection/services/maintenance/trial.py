"""What the settings in force do with the call that a start offers for a first try."""

from __future__ import annotations

from dataclasses import dataclass

from detection.engine import Guard
from detection.engine.memory import BLOCKING
from detection.models import Project
from detection.selectors import policies

TOOL, ARGUMENTS = "search_web", {"q": "reset password"}
MAX_CALLS = 20
"""Calls that a person would send to see one of them blocked."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The first of a series of identical calls that does not run.

    Attributes
    ----------
    number
        Its number, from 1; 0 if none of the first `MAX_CALLS` is stopped.
    decision
        What happens to it: ``block``, ``hold`` or ``stop``; empty if none is stopped.
    """

    number: int = 0
    decision: str = ""


def trial() -> Trial:
    """Return what happens in the first project, whose key a start shows, without making the calls."""
    project = Project.objects.order_by("pk").first()
    if project is None:
        return Trial()
    guard = Guard(policies.overrides_of(project).policy_for("", "", "", {}))
    for number in range(1, MAX_CALLS + 1):
        decision = guard.call(TOOL, ARGUMENTS, at=number / 10).decision
        if decision in BLOCKING:
            return Trial(number, decision)
    return Trial()
