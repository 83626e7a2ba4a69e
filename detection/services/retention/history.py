"""Old history: packs the events of sessions that have rested for long, and unpacks them on request.

Each session in a transaction of its own, so that it can be interrupted and repeated at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db.models import QuerySet
from django.utils import timezone

from detection.models import Project, Session, SessionKey
from detection.services.errors import NotFound
from detection.services.sessions import packing
from detection.services.sessions.locked_session import locked_session
from detection.services.storage.disk_space import recycle_log_if_nearly_full

log = structlog.get_logger(__name__)
RUN_SESSIONS: Final = 2_000
"""Of a project in a run of housekeeping, which is every five minutes: about one minute of a busy worker."""
_BATCH_SESSIONS: Final = 200


@dataclass(slots=True)
class HistoryCount:
    """Sessions and events that were packed or unpacked."""

    sessions: int = 0
    events: int = 0


def pack(
    project: Project,
    before: datetime,
    *,
    name: str = "",
    limit: int | None = None,
    report: Callable[[HistoryCount], object] = lambda _: None,
) -> HistoryCount:
    """Pack the sessions of a project that have rested since a time, the oldest first.

    Parameters
    ----------
    name
        Only the session of this name.
    limit
        How many sessions at most.
    report
        Called after every batch.
    """
    rows, done = packing.resting(project, before), HistoryCount()
    for key in _keys(rows.filter(external_id=name) if name else rows, report, done):
        try:
            events = packing.pack(rows, key)
        except packing.PackingError:
            log.exception("session_not_packed", session=key.session_id)
            continue
        if events:
            done.sessions += 1
            done.events += events
            if limit is not None and done.sessions >= limit:
                break
    if done.sessions:
        log.info("sessions_packed", project=project.slug, sessions=done.sessions, events=done.events)
    return done


def unpack(
    project: Project,
    *,
    name: str = "",
    since: datetime | None = None,
    report: Callable[[HistoryCount], object] = lambda _: None,
) -> HistoryCount:
    """Make packed events of a project rows again.

    Parameters
    ----------
    name, since
        Only the session of this name, or those with an event since a time.
    """
    rows, done = Session.objects.filter(project_id=project.pk, packed_at__isnull=False), HistoryCount()
    if name:
        rows = rows.filter(external_id=name)
    if since is not None:
        rows = rows.filter(last_event_at__gte=since)
    for key in _keys(rows, report, done):
        with suppress(NotFound), locked_session(key) as locked:  # which unpacks it
            done.sessions += 1
            done.events += locked.session.last_seq
    return done


def pack_old(project: Project) -> None:
    """Pack what is older than the project's setting; some of it, if there is much."""
    pack(project, timezone.now() - timedelta(days=project.pack_after_days), limit=RUN_SESSIONS)


def _keys(
    rows: QuerySet[Session], report: Callable[[HistoryCount], object], done: HistoryCount
) -> Iterator[SessionKey]:
    after = 0
    while batch := [
        *rows.filter(pk__gt=after).order_by("pk").values_list("project_id", "pk")[:_BATCH_SESSIONS]
    ]:
        recycle_log_if_nearly_full()
        yield from (SessionKey(*row) for row in batch)
        after = batch[-1][1]
        report(done)
