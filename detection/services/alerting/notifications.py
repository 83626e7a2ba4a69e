"""Test notifications and resending."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.utils import timezone

from detection.models import AlertDestination, Notification, NotificationState
from detection.services import audit
from detection.services.alerting import delivery
from detection.services.audit import Actor
from detection.services.errors import Conflict, NotFound, found

MAX_RESENT = 1000


def send_test(project_id: int, destination_id: str, actor: Actor) -> Notification:
    """Send a test notification to a destination, by public id, and wait up to a few seconds for the outcome."""
    with transaction.atomic():
        destinations = AlertDestination.objects.select_for_update(no_key=True)
        destination = found(destinations.filter(project_id=project_id, public_id=destination_id).first())
        notification = Notification.objects.create(
            project_id=project_id, destination=destination, is_test=True, due_at=timezone.now()
        )
        audit.record(
            actor,
            "destination.test",
            destination.public_id,
            project_id=project_id,
            after={"notification": notification.public_id},
        )
    delivery.send_now(project_id, notification.pk)
    notification.refresh_from_db()
    return notification


@transaction.atomic
def resend(project_id: int, public_ids: Sequence[str] | None, actor: Actor) -> int:
    """Send notifications again with their original ids and payloads.

    Parameters
    ----------
    public_ids
        None for every failed notification of the project, at most 1,000.

    Returns
    -------
    int
        How many are sent again; waiting ones are sent at once.

    Raises
    ------
    NotFound, Conflict
        If none of the ids exists, or all of them are just being sent.
    """
    rows = Notification.objects.select_for_update().filter(project_id=project_id)
    if public_ids is None:
        chosen = list(rows.filter(state=NotificationState.FAILED, is_test=False).order_by("id")[:MAX_RESENT])
    else:
        found = list(rows.filter(public_id__in=public_ids))
        chosen = [row for row in found if row.state != NotificationState.SENDING]
        if not found:
            raise NotFound
        if not chosen:
            raise Conflict("The notification is being sent.", code="being_sent")
    for row in chosen:
        row.state, row.due_at, row.tries_left, row.finished_at = (
            NotificationState.WAITING,
            timezone.now(),
            delivery.TRIES,
            None,
        )
        row.save(update_fields=["state", "due_at", "tries_left", "finished_at"])
    if chosen:
        audit.record(
            actor,
            "notification.resend",
            chosen[0].public_id if len(chosen) == 1 else f"{len(chosen)} notifications",
            project_id=project_id,
            after={"notifications": [row.public_id for row in chosen[:50]]},
        )
    return len(chosen)
