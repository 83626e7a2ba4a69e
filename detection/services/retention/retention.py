"""Housekeeping: creates partitions, deletes old rows, ends abandoned incidents. Safe to run twice or concurrently."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import connection
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from detection.engine.detectors import DETECTORS
from detection.models import EventKey, Incident, Project, Session, SessionKey, SessionState
from detection.models.events import oldest_kept_day
from detection.services import brief_records
from detection.services.accounts import sign_in_throttle, sign_ins
from detection.services.alerting import outbox
from detection.services.errors import NotFound
from detection.services.gateway.traffic import trim_traffic
from detection.services.incidents import bulk_actions, family_incidents
from detection.services.ingestion import transcript_imports
from detection.services.ingestion.spikes import forget_old_hours
from detection.services.retention import history, removal
from detection.services.sessions import families
from detection.services.sessions.locked_session import locked_session
from detection.services.storage.disk_space import recycle_log_if_nearly_full
from detection.services.tracking.tracker import ABANDONED_AFTER, SILENT_FOR
from detection.services.what_if import what_ifs
from detection.sql.advisory_locks import AdvisoryLock, try_lock

log = structlog.get_logger(__name__)

WEEKS_AHEAD = 8
MAX_BATCHES = 50
ATTEMPTS_KEPT = 500
EVENT_IDS_KEPT = timedelta(days=7)
BATCH_EVENT_IDS = 20_000
MAX_ABANDONED = 1000


def housekeeping() -> None:
    """Run all housekeeping; a concurrent run returns at once."""
    with try_lock(AdvisoryLock.HOUSEKEEPING) as is_locked:
        if not is_locked:
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT detection_ensure_partitions(%s)", [WEEKS_AHEAD])
        end_abandoned()
        for project in Project.objects.order_by("pk"):
            purge(project)
        drop_empty_partitions()
        trim()
        for project in Project.objects.exclude(pack_after_days=0).order_by("pk"):
            history.pack_old(project)


def end_abandoned() -> int:
    """End the loops of sessions without an event for an hour; a later finding opens a new incident.

    Returns
    -------
    int
        Number of sessions, and of incidents of families. A session that another transaction has locked is not
        abandoned.
    """
    quiet = timezone.now() - ABANDONED_AFTER
    silent_kinds = [one.kind for one in DETECTORS if one.is_silence]
    loops = Incident.objects.filter(
        project_id=OuterRef("project_id"), session_id=OuterRef("pk"), ended_at=None, is_of_family=False
    )
    loops = loops.exclude(kind__in=silent_kinds)
    rows = (
        Session.objects.filter(has_active_incident=True, last_event_at__lt=quiet)
        .filter(Q(last_event_at__lt=timezone.now() - SILENT_FOR) | Exists(loops))
        .exclude(state=SessionState.HELD)
    )
    total = family_incidents.end_quiet(quiet, timezone.now())
    for row in rows.values_list("project_id", "pk")[:MAX_ABANDONED]:
        try:
            with locked_session(SessionKey(*row), wait=False) as locked:
                if locked.session.last_event_at < quiet:
                    locked.incidents.abandon(timezone.now())
                    total += 1
        except NotFound:
            continue
        except Exception:  # nothing is purged or packed before this has ended
            log.exception("session_not_abandoned", session_id=row[1])
    return total


def purge(project: Project) -> int:
    """Delete sessions of the project whose last event is older than its retention, in small transactions.

    Also what no longer says how many events the project usually reports.
    """
    before = timezone.now() - timedelta(days=project.retention_days)
    total = 0
    for _ in range(MAX_BATCHES):
        removed = removal.remove_older_than(project.pk, before)
        total += removed
        if removed < removal.BATCH_SESSIONS:
            break
    families.remove_older_than(project.pk, before)
    forget_old_hours(project.pk)
    if total:
        log.info("sessions_purged", project=project.slug, sessions=total)
    return total


def drop_empty_partitions() -> list[str]:
    """Drop empty partitions of past weeks, with the rights of the database owner."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT detection_drop_empty_partitions(%s)", [oldest_kept_day()])
        return [name for (name,) in cursor.fetchall()]


def trim() -> None:
    """Trim the bounded tables: attempts, imports and what-ifs per project, and what expires with time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM detection_attempt WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER"
            " (PARTITION BY project_id ORDER BY id DESC) AS place FROM detection_attempt) AS numbered"
            " WHERE place > %s)",
            [ATTEMPTS_KEPT],
        )
    _forget_event_ids()
    outbox.trim()
    trim_traffic()
    transcript_imports.trim()
    what_ifs.trim()
    sign_in_throttle.forget_expired()
    sign_ins.forget_expired()
    brief_records.forget_expired()
    bulk_actions.trim()


def _forget_event_ids() -> None:
    """Delete old event ids in small transactions, as `removal` deletes events."""
    old = EventKey.objects.filter(received_at__lt=timezone.now() - EVENT_IDS_KEPT)
    times = old.order_by("received_at").values_list("received_at", flat=True)
    is_left = True
    while is_left:
        recycle_log_if_nearly_full()
        last = times[BATCH_EVENT_IDS - 1 : BATCH_EVENT_IDS].first()
        is_left = last is not None
        (old.filter(received_at__lte=last) if is_left else old).delete()
