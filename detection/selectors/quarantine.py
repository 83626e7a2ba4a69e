"""Reads quarantined events: counts, and the list with tracebacks."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count

from detection.models import QuarantinedEvent
from detection.selectors.pages import Order, Page, SortKey, cut

_NEWEST = Order(SortKey("newest", "id", "number"))


@dataclass(frozen=True, slots=True)
class QuarantineCounts:
    """Quarantined events, and the sessions that they belong to."""

    events: int
    sessions: int


def quarantine_counts(project_id: int) -> QuarantineCounts:
    """Count all quarantined events of a project, by index."""
    rows = QuarantinedEvent.objects.filter(project_id=project_id)
    return QuarantineCounts(**rows.aggregate(events=Count("pk"), sessions=Count("session_id", distinct=True)))


def list_quarantined(
    project_id: int, session: str = "", cursor: str = "", limit: int = 50
) -> Page[QuarantinedEvent]:
    """List quarantined events, newest first, with their sessions.

    Parameters
    ----------
    session
        Only those of this session; empty for all.
    cursor
        `next_cursor` of the page before.

    Raises
    ------
    BadCursor
        If the cursor was not created by this list.
    """
    rows = QuarantinedEvent.objects.filter(project_id=project_id).select_related("session")
    if session:
        rows = rows.filter(session__external_id=session)
    return cut([*_NEWEST.page(rows, cursor)[: limit + 1]], limit, _NEWEST.cursor)
