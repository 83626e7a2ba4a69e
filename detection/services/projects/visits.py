"""Visits of people to a project: since when they have not seen what changed."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.utils import timezone

from detection.models import Membership

AWAY: Final = timedelta(minutes=10)
"""A visit ends when the person opens no page for this long; a judgement."""
_PRECISION: Final = timedelta(minutes=1)


def note_visit(membership: Membership) -> None:
    """Note that a person opens a page; the first one after a while begins a visit. At most one statement a minute."""
    now, seen = timezone.now(), membership.seen_at
    if seen is not None and now - seen < _PRECISION:
        return
    if seen is not None and now - seen > AWAY:
        membership.last_visit_at = seen
    membership.seen_at = now
    _store(membership)


def mark_as_read(membership: Membership) -> None:
    """Note that a person has seen everything until now."""
    membership.last_visit_at = membership.seen_at = timezone.now()
    _store(membership)


def _store(membership: Membership) -> None:
    rows = Membership.objects.filter(project_id=membership.project_id, pk=membership.pk)
    rows.update(seen_at=membership.seen_at, last_visit_at=membership.last_visit_at)
