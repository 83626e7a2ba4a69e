"""What a detector is: a small pure fold over the calls and results of a lane.

The fold has already put the record in hand at the end of `lane.records` and, after a result, filled in its outcome.
A detector keeps what it needs in `own`, a JSON-able dictionary that nobody else touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from detection.engine.calls import Finding
from detection.engine.memory import Lane, Record
from detection.engine.policy import Policy
from detection.engine.results import Outcome

MAX_EVIDENCE = 50


class Reading(NamedTuple):
    """How far a detector is, and what it found."""

    reached: int
    limit: int
    finding: Finding | None = None


QUIET = Reading(0, 1)


class Detector:
    """The face of every detector; each overrides what it needs and is asked nothing else.

    `kind` names it, `switch` is the setting that turns it on.
    """

    kind = ""
    switch = ""

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """Judge a call before it runs."""
        return QUIET

    def on_result(
        self, own: dict[str, Any], lane: Lane, record: Record, outcome: Outcome, policy: Policy
    ) -> Reading:
        """Judge a call by its result."""
        return QUIET

    def on_change(self, own: dict[str, Any], lane: Lane, record: Record) -> None:
        """Something was changed successfully: take back evidence that is now out of date."""

    def rearm(self, own: dict[str, Any], lane: Lane, keys: tuple[str, ...]) -> None:
        """Start counting this loop anew."""


def evidence(records: list[Record]) -> tuple[int, ...]:
    """Sequence numbers of records, the newest if there are many."""
    return tuple(record.seq for record in records[-MAX_EVIDENCE:])


def detail(tool: str, **more: Any) -> Mapping[str, Any]:
    """Details of a finding, without those that say nothing."""
    return {"tool": tool, **{name: value for name, value in more.items() if value not in (None, False)}}
