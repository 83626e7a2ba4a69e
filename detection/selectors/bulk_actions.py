"""Reads the bulk action that is running or can still be undone."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.utils import timezone

from detection.models import BulkAction

SHOWN_FOR: Final = timedelta(minutes=10)
IMMEDIATE: Final = timedelta(seconds=3)
"""Actions that finish within this time are reported by the response itself."""


def shown(project_id: int, user_name: str) -> BulkAction | None:
    """Return the running action of anyone, or the latest one of this person that a worker just finished; one query."""
    rows = BulkAction.objects.filter(project_id=project_id).select_related("reverts")
    row = rows.defer("targets", "reverts__targets").order_by("-pk").first()
    if row is None or row.finished_at is None:
        return row
    is_recent = timezone.now() - row.finished_at < SHOWN_FOR
    return (
        row if is_recent and row.actor == user_name and row.finished_at - row.created_at > IMMEDIATE else None
    )
