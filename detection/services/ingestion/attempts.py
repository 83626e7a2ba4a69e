"""Records requests to events and guard with their outcome, in the background: recording one costs no query.

Attempts are collected in memory, identical ones as one row, and written twice a second by one thread of the process.
They serve diagnosis and may be incomplete: above `MAX_WAITING` different ones, new ones are dropped.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connection
from django.db.models import F, JSONField, Value
from django.db.models.expressions import CombinedExpression
from django.utils import timezone

from detection.background_publisher import BackgroundPublisher
from detection.models import ApiKey, Attempt
from detection.services.ingestion.spikes import spikes
from detection.services.keys import LAST_USED_STEP, PREFIX
from detection.services.redaction.redaction import Redactor
from detection.stream.hints import Hint
from detection.stream.publisher import publish_now

log = structlog.get_logger(__name__)
FLUSH_SECONDS = 0.5
MAX_WAITING = 500
_REDACTOR = Redactor(settings.SECRET_KEY.encode())
"""Of no project: the key of a request may be unknown."""
MAX_NOTED_ROUTES = 10_000


@dataclass(slots=True)
class _Note:
    """Identical attempts since the last write."""

    detail: str
    at: datetime = field(default_factory=timezone.now)
    times: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: {"accepted": 0, "duplicate": 0, "altered": 0, "rejected": 0}
    )


_Key = tuple[int | None, str, int, str, str, str]


class AttemptRecorder:
    """Collects attempts in memory, and writes them from the thread of its publisher.

    Parameters
    ----------
    max_waiting : int
        Maximum number of distinct attempts that wait to be written.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[_Key, _Note] = {}
        self._noted_routes: dict[tuple[str, str], datetime] = {}
        self._lock = threading.Lock()
        self._publisher = BackgroundPublisher("attempts")

    def note(
        self,
        project_id: int | None,
        route: str,
        status: int,
        code: str = "",
        detail: str = "",
        key_hint: str = "",
        *,
        decision: str = "",
        accepted: int = 0,
        duplicate: int = 0,
        altered: int = 0,
        rejected: int = 0,
    ) -> None:
        """Record one attempt.

        Parameters
        ----------
        project_id
            None when the key was not recognised; a readable `key_hint` then still finds the project.
        code, detail
            Code and detail of the error in the response.
        decision
            What a guard request was answered; empty for events.
        accepted, duplicate, altered, rejected
            Numbers of events.
        """
        key = (project_id, route, status, code, key_hint, decision)
        with self._lock:
            known = self._waiting.get(key)
            if known is None:
                if len(self._waiting) >= self._max_waiting:
                    return
                # Errors quote names of fields and values of the client.
                known = self._waiting[key] = _Note(_REDACTOR.text(detail)[:280])
            known.times += 1
            for name, number in (
                ("accepted", accepted),
                ("duplicate", duplicate),
                ("altered", altered),
                ("rejected", rejected),
            ):
                known.counts[name] += number
        if settings.ATTEMPTS_IN_BACKGROUND:
            self._publisher.enqueue("flush", lambda _: self._flush_soon())

    def flush(self) -> int:
        """Write the collected attempts; return the number of rows."""
        with self._lock:
            notes, self._waiting = self._waiting, {}
        if not notes:
            return 0
        try:
            projects = _projects_of({key[4] for key in notes if key[0] is None and key[4]})
            rows = [_row(key, noted, key[0] or projects.get(key[4])) for key, noted in notes.items()]
            Attempt.objects.bulk_create(rows)
        except IntegrityError:
            raise  # a project was deleted meanwhile: keeping its attempts would let every later write fail
        except DatabaseError:
            self._keep(notes)
            raise
        for project_id in {row.project_id for row in rows if row.project_id}:
            publish_now(project_id, Hint("attempt"))
        self._note_routes(notes)
        return len(rows)

    def _note_routes(self, notes: dict[_Key, _Note]) -> None:
        """Note with each key when its routes accepted a request, at most once in `LAST_USED_STEP`."""
        used: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
        for (project_id, route, status, _, key_hint, _), noted in notes.items():
            known_at = self._noted_routes.get((key_hint, route))
            if project_id is None or status >= 400 or (known_at and noted.at - known_at < LAST_USED_STEP):
                continue
            used[key_hint][route] = noted.at
        for key_hint, routes in used.items():
            added = Value({route: at.isoformat() for route, at in routes.items()}, JSONField())
            keys = ApiKey.objects.filter(public_id=key_hint.removeprefix(PREFIX))
            keys.update(routes=CombinedExpression(F("routes"), "||", added, output_field=JSONField()))
            self._noted_routes.update({(key_hint, route): at for route, at in routes.items()})
        if len(self._noted_routes) > MAX_NOTED_ROUTES:
            self._noted_routes.clear()

    def _keep(self, notes: dict[_Key, _Note]) -> None:
        """Keep attempts for the next write, as this one failed."""
        with self._lock:
            for key, noted in notes.items():
                newer = self._waiting.pop(key, None)
                if newer is not None:
                    noted.times += newer.times
                    noted.counts = {
                        name: number + newer.counts[name] for name, number in noted.counts.items()
                    }
                if len(self._waiting) < self._max_waiting:
                    self._waiting[key] = noted

    def clear(self) -> None:
        """Drop the collected attempts, and forget which routes were noted."""
        with self._lock:
            self._waiting, self._noted_routes = {}, {}

    def _flush_soon(self) -> None:
        time.sleep(FLUSH_SECONDS)
        try:
            self.flush()
            spikes.flush()
        except DatabaseError as error:
            log.warning("attempts_not_written", error=str(error)[:200])
        finally:
            connection.close()


recorder = AttemptRecorder()


def _row(key: _Key, noted: _Note, project_id: int | None) -> Attempt:
    _, route, status, code, key_hint, decision = key
    return Attempt(
        project_id=project_id,
        at=noted.at,
        route=route[:32],
        status=status,
        code=code[:48],
        detail=noted.detail,
        key_hint=key_hint[:24],
        decision=decision,
        times=noted.times,
        **noted.counts,
    )


def _projects_of(hints: set[str]) -> dict[str, int]:
    if not hints:
        return {}
    by_id = {hint.removeprefix(PREFIX): hint for hint in hints}
    rows = ApiKey.objects.filter(public_id__in=by_id).values_list("public_id", "project_id")
    return {by_id[public_id]: project_id for public_id, project_id in rows}
