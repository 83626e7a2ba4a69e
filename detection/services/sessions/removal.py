"""Removes sessions with their events: those past their retention, and those of the demo. Incidents stay, with their evidence."""

from __future__ import annotations

from datetime import datetime

from django.db import connection, transaction

from detection.models import Incident, Session
from detection.services import audit
from detection.services.audit import Actor
from detection.services.maintenance import hourly_counts
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

BATCH_SESSIONS = 200


@transaction.atomic
def remove_older_than(project_id: int, before: datetime) -> int:
    """Remove a batch of a project's sessions whose last event is older, unless another transaction holds them.

    Returns
    -------
    int
        How many sessions; fewer than `BATCH_SESSIONS` when none is left.
    """
    rows = Session.objects.select_for_update(skip_locked=True).filter(
        project_id=project_id, last_event_at__lt=before
    )
    ids = list(rows.values_list("pk", flat=True)[:BATCH_SESSIONS])
    if ids:
        delete_sessions(ids)
        audit.record(
            audit.SYSTEM,
            "retention.purge",
            "sessions",
            project_id=project_id,
            before={"sessions": len(ids), "last_event_before": before.isoformat()},
        )
    return len(ids)


def remove_demo(project_id: int, actor: Actor) -> int:
    """Remove everything that the demo created in a project: sessions, calls and incidents. Returns how many sessions."""
    total = 0
    while True:
        with transaction.atomic():
            rows = Session.objects.select_for_update().filter(project_id=project_id, is_demo=True)
            ids = list(rows.order_by("external_id").values_list("pk", flat=True)[:BATCH_SESSIONS])
            if not ids:
                break
            delete_sessions(ids)
            total += len(ids)
    with transaction.atomic():
        Incident.objects.filter(project_id=project_id, is_demo=True).delete()
        hourly_counts.forget_demo(project_id)
        audit.record(actor, "demo.remove", "demo sessions", project_id=project_id, before={"sessions": total})
        publish_after_commit(project_id, Hint("session"), Hint("incident"))
    return total


def delete_sessions(session_ids: list[int]) -> None:
    """Delete sessions with their events, in the transaction of the caller."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM detection_event WHERE session_id = ANY(%s)", [session_ids])
        cursor.execute("DELETE FROM detection_eventkey WHERE session_id = ANY(%s)", [session_ids])
    Session.objects.filter(pk__in=session_ids).delete()
