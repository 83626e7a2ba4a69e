"""What an exception would hide besides the loop that it is made for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final

from django.utils import timezone

from detection.engine.fields import FIELDS
from detection.models import Incident, Loop
from detection.models.incidents import IS_LOOP
from detection.services.exceptions.exceptions import ExceptionOption

LOST_WITHIN: Final = timedelta(days=7)
MAX_COMPARED: Final = 5_000
"""Incidents that are looked at, the newest ones; a judgement."""
_COMPARED: Final = (
    "loop_id", "session_name", "tool", "agent", "backend", "model", "kinds", "count", "cost_usd",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lost:
    """Loops that an exception may hide besides the one that it is made for.

    Attributes
    ----------
    loops, cost_usd
        How many, and what their runs cost within `LOST_WITHIN`.
    is_capped
        Whether there are more runs than were looked at.
    """

    loops: int
    cost_usd: Decimal
    is_capped: bool


def lost_with(
    project_id: int, loops: Iterable[Loop], choices: Sequence[Sequence[ExceptionOption]]
) -> list[Lost]:
    """Count the other loops of the last seven days that would not have been found, for each choice; one query.

    A run counts if each of its detectors is disabled, or has a limit then that its count does not reach. So the
    numbers are the highest possible ones: some runs went no further only because something stopped them.

    Parameters
    ----------
    loops
        Those that the exceptions are made for.
    choices
        The exceptions that each choice saves.
    """
    own = {one.pk for one in loops}
    rows = Incident.objects.filter(
        IS_LOOP, project_id=project_id, last_seen_at__gt=timezone.now() - LOST_WITHIN
    ).order_by("-last_seen_at")
    read = [*rows.values(*_COMPARED)[:MAX_COMPARED]]
    others = [row for row in read if row["loop_id"] not in own]
    found = []
    for options in choices:
        costs: defaultdict[int, Decimal] = defaultdict(Decimal)
        for row in others:
            if any(_hides(option, row) for option in options):
                costs[row["loop_id"]] += row["cost_usd"]
        found.append(Lost(len(costs), sum(costs.values(), Decimal()), len(read) == MAX_COMPARED))
    return found


def _hides(option: ExceptionOption, row: Mapping[str, Any]) -> bool:
    if not _is_in_scope(option, row):
        return False
    if option.sets is None:
        return True
    raised: dict[str, float] = {}
    for name, value in option.sets.items():
        field = FIELDS[name]
        limit = float("inf") if value is False else float(value)
        raised[field.group] = max(limit, raised.get(field.group, 0.0))
    return all(row["count"] < raised.get(kind, 0.0) for kind in row["kinds"])


def _is_in_scope(option: ExceptionOption, row: Mapping[str, Any]) -> bool:
    change = option.change
    if change.session:
        return bool(row["session_name"] == change.session)
    scope = change.scope
    if change.rule is not None:
        return fnmatchcase(row["tool"], scope.pattern)
    return all(
        not wanted or row[name] == wanted
        for name, wanted in (("agent", scope.agent), ("backend", scope.backend), ("model", scope.model))
    )
