"""Requests to calculate the costs of imported calls anew. The work on them is in `services.gateway.repricing`."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from detection.models import Recalculation


def request(project_id: int) -> None:
    """Request it, in the transaction of the change of a price; one that runs begins anew. One statement."""
    begin = {
        "requested_at": timezone.now(), "cursor": 0, "sessions": 0, "done_sessions": 0, "changed_sessions": 0,
        "finished_at": None,
    }  # fmt: skip
    Recalculation.objects.update_or_create(project_id=project_id, defaults=begin)


def request_if_changed(project_id: int, since: datetime) -> None:
    """Request it again if a price was changed while an import used the earlier prices."""
    if Recalculation.objects.filter(project_id=project_id, requested_at__gte=since).exists():
        request(project_id)
