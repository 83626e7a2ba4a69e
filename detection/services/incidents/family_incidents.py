"""Ends the incidents of families: the one rule about them that needs no session and no family.

They are found by whichever session of a family is folded, see `tracker`. None of them can tell that the others have
left the loop, so its incident ends when nobody has been found in it for as long as a session counts as abandoned.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from detection.models import Incident, IncidentActivity
from detection.models.tenants import projects_of
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.tracking import lifecycle
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

_BATCH = 1000


def end_quiet(before: datetime, at: datetime) -> int:
    """End the incidents of families that were not found since `before`; return how many."""
    quiet = Incident.objects.filter(is_of_family=True, ended_at=None, last_seen_at__lt=before)
    return sum(_end(quiet.filter(project_id=one), at) for one in projects_of(quiet))


def _end(quiet: QuerySet[Incident], at: datetime) -> int:
    with transaction.atomic():
        rows = quiet.select_for_update(skip_locked=True, of=("self",))
        ended = [*rows.order_by("pk")[:_BATCH]]
        activity = []
        for incident in ended:
            incident.ended_at, incident.recovered = at, None
            lifecycle.settle(incident)
            incident.save(update_fields=["ended_at", "recovered", *lifecycle.STATUS_FIELDS])
            activity.append(
                IncidentActivity(incident=incident, actor="system", action="ended", note="not found again")
            )
            publish_after_commit(incident.project_id, Hint("incident", incident.public_id, "ended"))
        IncidentActivity.objects.bulk_create(activity)
        audit.record_incidents(activity)
        outbox.record_activity(activity)
    return len(ended)
