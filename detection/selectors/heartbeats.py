"""Reads the heartbeats of the installation's parts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from detection.models import PartHeartbeat

PARTS = {"worker": 300.0, "sweeper": 30.0, "beat": 60.0, "housekeeping": 900.0}
"""Number of seconds without work after which a part is late; a worker may be idle."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """When one part last did work; `at` is None if unknown."""

    part: str
    at: datetime | None
    by: str
    is_late: bool


def heartbeats(now: datetime) -> tuple[Heartbeat, ...]:
    """Return the heartbeat of each part; one query."""
    found = PartHeartbeat.objects.in_bulk([*PARTS])
    beats = []
    for part, late_seconds in PARTS.items():
        beat = found.get(part)
        at = beat.at if beat else None
        is_late = at is None or (now - at).total_seconds() > late_seconds
        beats.append(Heartbeat(part, at, beat.by if beat else "", is_late))
    return tuple(beats)
