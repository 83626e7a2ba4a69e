"""Housekeeping: partitions ahead of time, old rows away, forgotten incidents ended. Safe to run twice, or twice at once."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import connection, transaction
from django.utils import timezone

from detection.models import EventKey, Incident, IncidentActivity, Project, Session, SessionState
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.incidents.tracker import ABANDONED_AFTER
from detection.services.sessions.actions import delete_sessions

log = structlog.get_logger(__name__)

WEEKS_AHEAD = 8
DAYS_PER_PARTITION = 7
BATCH_SESSIONS = 200
MAX_BATCHES = 50
ATTEMPTS_KEPT = 500
EVENT_IDS_KEPT = timedelta(days=7)
_HOUSEKEEPING_LOCK = 0x4C47_0003


def housekeeping() -> None:
    """Do all of it; a second run at the same time returns at once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_HOUSEKEEPING_LOCK])
        if not cursor.fetchone()[0]:
            return
        try:
            cursor.execute("SELECT detection_ensure_partitions(%s)", [WEEKS_AHEAD])
            end_abandoned()
            for project in Project.objects.order_by("pk"):
                purge(project)
            drop_empty_partitions()
            trim()
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_HOUSEKEEPING_LOCK])


def end_abandoned() -> int:
    """End the incidents of sessions that nobody has heard of for an hour; a late event opens a new one."""
    quiet = timezone.now() - ABANDONED_AFTER
    with transaction.atomic():
        sessions = list(
            Session.objects.select_for_update(skip_locked=True)
            .filter(state=SessionState.LOOPING, last_event_at__lt=quiet)
            .values_list("pk", flat=True)[:1000]
        )
        ended = list(
            Incident.objects.select_for_update(of=("self",))
            .select_related("session")
            .filter(session_id__in=sessions, ended_at=None)
        )
        told = []
        for incident in ended:
            incident.ended_at, incident.recovered = timezone.now(), False
            told.append(IncidentActivity(incident=incident, actor="system", action="ended", note="abandoned"))
        Incident.objects.bulk_update(ended, ["ended_at", "recovered"])
        IncidentActivity.objects.bulk_create(told)
        audit.record_incidents(told)
        outbox.note_activity(told)
        Session.objects.filter(pk__in=sessions).update(state=SessionState.RUNNING)
    return len(ended)


def purge(project: Project) -> int:
    """Remove the project's sessions whose last event is older than it keeps, in small transactions."""
    before = timezone.now() - timedelta(days=project.retention_days)
    total = 0
    for _ in range(MAX_BATCHES):
        with transaction.atomic():
            rows = Session.objects.select_for_update(skip_locked=True).filter(
                project=project, last_event_at__lt=before
            )
            ids = list(rows.values_list("pk", flat=True)[:BATCH_SESSIONS])
            delete_sessions(ids)
            if ids:
                audit.record(
                    audit.SYSTEM,
                    "retention.purge",
                    "sessions",
                    project_id=project.pk,
                    before={"sessions": len(ids), "last_event_before": before.isoformat()},
                )
        total += len(ids)
        if len(ids) < BATCH_SESSIONS:
            break
    if total:
        log.info("sessions_purged", project=project.slug, sessions=total)
    return total


def drop_empty_partitions() -> list[str]:
    """Drop the partitions of weeks long past that hold nothing any more; the database does it with its owner's rights."""
    oldest_kept = int(timezone.now().timestamp()) // 86_400 - 2 * DAYS_PER_PARTITION
    with connection.cursor() as cursor:
        cursor.execute("SELECT detection_drop_empty_partitions(%s)", [oldest_kept])
        return [name for (name,) in cursor.fetchall()]


def trim() -> None:
    """Keep the bounded tables bounded: attempts per project, and event ids of sessions that went quiet."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM detection_attempt WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER"
            " (PARTITION BY project_id ORDER BY id DESC) AS place FROM detection_attempt) AS numbered WHERE place > %s)",
            [ATTEMPTS_KEPT],
        )
    EventKey.objects.filter(received_at__lt=timezone.now() - EVENT_IDS_KEPT).delete()
    outbox.trim()
