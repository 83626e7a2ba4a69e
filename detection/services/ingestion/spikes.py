"""Spike protection: a project that reports far more events than usual, or than its limit, has fewer of them stored.

Only reports are held back: events and OpenTelemetry, of keys that ask nothing. Whoever asks the guard waits for each
answer, and decides alone without one, so the guard, hooks and the gateway are never rejected here, nor are reports sent
with the key of an agent that asks: its verdicts depend on them.

Each process counts in memory, without a query, and adds its counts to the row of the hour twice a second. The answer is
the count of all processes, so they exceed a limit together by what they receive in half a second.
"""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import DatabaseError, IntegrityError

from detection import clock
from detection.models import ReportedHour
from detection.selectors.reported_events import USUAL_DAYS, limit_per_minute, usual_per_minute
from detection.services.keys import Principal
from detection.sql.pipeline import Statement, has_nodes, send

SAMPLE_OF: Final = 10
"""Of so many sessions, one is kept while reports are sampled."""
USUAL_KEPT_SECONDS: Final = 600.0
HOURS_KEPT: Final = timedelta(days=USUAL_DAYS + 1)
MAX_PROJECTS: Final = 10_000
_MAX_STATEMENTS: Final = 100
_ADD: Final = """
INSERT INTO detection_reportedhour AS stored
    (project_id, hour, events, minute, minute_events, rejected, sampled, spiked_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (project_id, hour) DO UPDATE SET
    events = stored.events + excluded.events,
    minute_events = CASE
        WHEN excluded.minute > stored.minute THEN excluded.minute_events
        WHEN excluded.minute = stored.minute THEN stored.minute_events + excluded.minute_events
        ELSE stored.minute_events END,
    minute = greatest(stored.minute, excluded.minute),
    rejected = stored.rejected + excluded.rejected,
    sampled = stored.sampled + excluded.sampled,
    spiked_at = coalesce(excluded.spiked_at, stored.spiked_at)
RETURNING minute, minute_events
"""


@dataclass(slots=True)
class _Counts:
    """What this process has not written yet."""

    events: int = 0
    minute_events: int = 0
    rejected: int = 0
    sampled: int = 0
    spiked_at: datetime | None = None

    def add(self, other: _Counts) -> None:
        self.events += other.events
        self.minute_events += other.minute_events
        self.rejected += other.rejected
        self.sampled += other.sampled
        self.spiked_at = self.spiked_at or other.spiked_at


class _Project:
    """The reports of one project in the present minute."""

    __slots__ = ("fresh", "known", "minute", "usual", "usual_until")

    def __init__(self) -> None:
        self.minute = 0
        self.known = 0
        """Events of this minute in all processes, as of the last write."""
        self.fresh = _Counts()
        self.usual: float | None = None
        self.usual_until = 0.0

    def turn(self, minute: int) -> None:
        if minute != self.minute:
            self.minute, self.known, self.fresh.minute_events = minute, 0, 0


class Spikes:
    """The reports of all projects that this process has seen lately; safe to use from several threads.

    Parameters
    ----------
    max_projects
        How many it remembers. With one more, it forgets all, and their counts of the last half second.
    """

    def __init__(self, max_projects: int = MAX_PROJECTS) -> None:
        self._max_projects = max_projects
        self._projects: dict[int, _Project] = {}
        self._lock = threading.Lock()

    def limit_exceeded(self, principal: Principal) -> float | None:
        """Return the limit if the project has reported that many events in this minute; else None. No query."""
        if principal.asks:
            return None
        with self._lock:
            known = self._projects.get(principal.project_id)
            if known is None:
                return None
            known.turn(_minute())
            limit = limit_per_minute(known.usual, principal.spike_limit)
            if limit is None or known.known + known.fresh.minute_events < limit:
                return None
            known.fresh.spiked_at = clock.now()
            return limit

    def count(self, principal: Principal, events: int = 0, *, rejected: int = 0, sampled: int = 0) -> None:
        """Count valid events, requests that were rejected, and events that were not stored, all above the limit.

        Costs a microsecond and no query.
        """
        with self._lock:
            known = self._projects.get(principal.project_id)
            if known is None:
                if len(self._projects) >= self._max_projects:
                    self._projects.clear()
                known = self._projects[principal.project_id] = _Project()
            known.turn(_minute())
            known.fresh.add(_Counts(events, events, rejected, sampled))

    def flush(self) -> None:
        """Add the counts to the rows of their hours, and learn those of the other processes.

        Costs one round trip for a hundred projects, and a query for each project every `USUAL_KEPT_SECONDS`.

        Raises
        ------
        DatabaseError
            They are kept for the next time.
        """
        with self._lock:
            taken = {}
            for project_id, known in sorted(self._projects.items()):
                if known.fresh != _Counts():
                    taken[project_id] = known.minute, known.fresh
                    known.known += known.fresh.minute_events
                    known.fresh = _Counts()
        # What nodes have written before a statement that fails stays written.
        left, size = list(taken.items()), 1 if taken and has_nodes() else _MAX_STATEMENTS
        while left:
            some = left[:size]
            try:
                rows = send(*(_statement(project_id, *counts) for project_id, counts in some))
            except IntegrityError:
                # A project was deleted meanwhile. Its counts are dropped: with them, every later write would fail.
                if size == 1:
                    del left[0]
                size = 1
                continue
            except DatabaseError:
                self._keep(left)
                raise
            for (project_id, (minute, _)), ((stored_minute, events),) in zip(some, rows, strict=True):
                self._learn(project_id, minute, stored_minute, events)
            del left[:size]
        for project_id in taken:
            self._know_usual(project_id)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._projects.clear()

    def _keep(self, taken: list[tuple[int, tuple[int, _Counts]]]) -> None:
        """Take counts back that could not be written."""
        with self._lock:
            for project_id, (minute, counts) in taken:
                known = self._projects.setdefault(project_id, _Project())
                if minute == known.minute:
                    known.known -= counts.minute_events
                else:
                    counts.minute_events = 0
                known.fresh.add(counts)

    def _learn(self, project_id: int, minute: int, stored_minute: int, events: int) -> None:
        """Take over the count of all processes, unless it is of another minute."""
        with self._lock:
            known = self._projects.get(project_id)
            if known is not None and known.minute == minute and minute % 60 == stored_minute:
                known.known = events

    def _know_usual(self, project_id: int) -> None:
        known = self._projects.get(project_id)
        if known is not None and known.usual_until < time.monotonic():
            known.usual = usual_per_minute(project_id)
            known.usual_until = time.monotonic() + USUAL_KEPT_SECONDS


spikes = Spikes()


def is_kept(session: str) -> bool:
    """Return whether a session is among those that are kept while reports are sampled; the same in every process."""
    return zlib.crc32(session.encode()) % SAMPLE_OF == 0


def forget_old_hours(project_id: int) -> None:
    """Delete what no longer counts as usual."""
    ReportedHour.objects.filter(project_id=project_id, hour__lt=clock.now() - HOURS_KEPT).delete()


def seconds_to_next_minute() -> int:
    """Return after how many seconds reports are accepted again, from 1 to 60."""
    return 60 - clock.now().second


def _minute() -> int:
    return int(clock.now().timestamp() // 60)


def _statement(project_id: int, minute: int, counts: _Counts) -> Statement:
    return Statement(
        _ADD,
        (
            project_id,
            datetime.fromtimestamp(minute // 60 * 3600, UTC),
            counts.events,
            minute % 60,
            counts.minute_events,
            counts.rejected,
            counts.sampled,
            counts.spiked_at,
        ),
    )
