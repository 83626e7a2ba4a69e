"""Removes sessions with their events: those past their retention, and those of the demo.

Incidents stay, with their evidence; `erasure` removes these as well.

Events go first and in transactions of limited size: PostgreSQL logs every page that a deletion touches, and the log of
one large deletion would fill a disk that is nearly full.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

from django.db import connection, transaction
from django.db.models import QuerySet

from detection.models import Approval, Incident, JudgeCall, Session, SessionKey
from detection.models.sessions import IMPORTED
from detection.services import audit
from detection.services.audit import Actor
from detection.services.maintenance import hourly_counts
from detection.services.storage import disk_space
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

BATCH_SESSIONS = 200
SLICE_EVENTS = 2000
SLICE_BYTES = SLICE_EVENTS * 8192
"""Approximate amount of log per transaction: a page of 8 KB for each event, and the stored size of its texts."""
_OLDEST_EVENTS = """
SELECT max(seq) FILTER (WHERE before < %(bytes)s), max(upto) FILTER (WHERE before < %(bytes)s),
    count(*) < %(events)s AND coalesce(bool_and(before < %(bytes)s), TRUE)
FROM (SELECT seq, sum(size) OVER (ORDER BY seq) AS upto, sum(size) OVER (ORDER BY seq) - size AS before
      FROM (SELECT seq, 8192 + coalesce(pg_column_size(arguments), 0) + coalesce(pg_column_size(content), 0) AS size
            FROM detection_event WHERE project_id = %(project)s AND session_id = %(session)s
            ORDER BY seq LIMIT %(events)s) AS oldest) AS sized
"""


def remove_older_than(project_id: int, before: datetime) -> int:
    """Remove a batch of a project's sessions whose last event is older, unless another transaction holds them.

    Of an imported session, the day of the import counts.

    Returns
    -------
    int
        How many sessions; fewer than `BATCH_SESSIONS` when none is left.
    """
    rows = Session.objects.filter(project_id=project_id, last_event_at__lt=before)
    # The upper half of the id is the day on which the row was created.
    first_id_since = int(before.timestamp()) // 86_400 << 32
    rows = rows.exclude(integration__startswith=IMPORTED, pk__gte=first_id_since)
    empty = delete_events(rows, skip_locked=True)
    with transaction.atomic():
        locked = rows.select_for_update(skip_locked=True)
        ids = list(locked.filter(pk__in=empty).values_list("pk", flat=True))
        if ids:
            delete_sessions(project_id, ids)
            audit.record(
                audit.SYSTEM,
                "retention.purge",
                "sessions",
                project_id=project_id,
                before={"sessions": len(ids), "last_event_before": before.isoformat()},
            )
    return len(ids)


def remove_demo(project_id: int, actor: Actor) -> int:
    """Remove all sessions, calls and incidents that the demo created in a project. Returns how many sessions."""
    rows = Session.objects.filter(project_id=project_id, is_demo=True).order_by("external_id")
    total = 0
    while empty := delete_events(rows):
        with transaction.atomic():
            ids = list(rows.select_for_update().filter(pk__in=empty).values_list("pk", flat=True))
            delete_sessions(project_id, ids)
        total += len(ids)
    with transaction.atomic():
        delete_incidents(project_id, Incident.objects.filter(project_id=project_id, is_demo=True))
        hourly_counts.forget_demo(project_id)
        audit.record(actor, "demo.remove", "demo sessions", project_id=project_id, before={"sessions": total})
        publish_after_commit(project_id, Hint("session"), Hint("incident"))
    return total


def delete_incidents(project_id: int, incidents: QuerySet[Incident]) -> None:
    """Delete incidents; approvals and consultations of the judge that refer to them stay."""
    Approval.objects.filter(project_id=project_id, incident__in=incidents).update(incident=None)
    JudgeCall.objects.filter(project_id=project_id, incident__in=incidents).update(incident=None)
    incidents.delete()


def delete_sessions(project_id: int, session_ids: list[int]) -> None:
    """Delete sessions with their events and consultations of the judge, in the transaction of the caller."""
    with connection.cursor() as cursor:
        for table in ("event", "eventkey"):
            cursor.execute(
                f"DELETE FROM detection_{table} WHERE project_id = %s AND session_id = ANY(%s)",  # noqa: S608
                [project_id, session_ids],
            )
    JudgeCall.objects.filter(project_id=project_id, session_id__in=session_ids).delete()
    Incident.objects.filter(project_id=project_id, session_id__in=session_ids).update(session=None)
    Session.objects.filter(project_id=project_id, pk__in=session_ids).delete()


def delete_events(rows: QuerySet[Session], *, skip_locked: bool = False) -> list[int]:
    """Delete the events of the first `BATCH_SESSIONS` sessions, oldest first, in transactions of about `SLICE_BYTES`.

    Parameters
    ----------
    rows
        Sessions to remove; one that is no longer among them keeps its other events.
    skip_locked
        Skip sessions that another transaction has locked.

    Returns
    -------
    list of int
        The sessions without events.
    """
    waiting = deque(SessionKey(*row) for row in rows.values_list("project_id", "pk")[:BATCH_SESSIONS])
    locked = rows.select_for_update(skip_locked=skip_locked)
    empty: list[int] = []
    while waiting:
        disk_space.recycle_log_if_nearly_full()
        left = SLICE_BYTES
        with transaction.atomic():
            while waiting and left > 0:
                if not locked.filter(pk=waiting[0].session_id).exists():
                    waiting.popleft()
                    continue
                size, is_empty = _delete_oldest_events(waiting[0], left)
                left -= size
                if is_empty:
                    empty.append(waiting.popleft().session_id)
    return empty


def _delete_oldest_events(key: SessionKey, max_bytes: int) -> tuple[int, bool]:
    """Delete events of a session until this size is reached; return their size, and whether none is left."""
    with connection.cursor() as cursor:
        values = {
            "project": key.project_id,
            "session": key.session_id,
            "bytes": max_bytes,
            "events": SLICE_EVENTS,
        }
        cursor.execute(_OLDEST_EVENTS, values)
        last, size, is_empty = cursor.fetchone()
        if last is not None:
            cursor.execute(
                "DELETE FROM detection_event WHERE project_id = %s AND session_id = %s AND seq <= %s",
                [*key, last],
            )
    return int(size or 0), is_empty
