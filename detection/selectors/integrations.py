"""Which integrations a project has been hearing from, and which of them only watch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, Max, OuterRef, Q, Sum
from django.utils import timezone

from detection.models import Event, EventType, Session

HEARD_DAYS = 7


@dataclass(frozen=True, slots=True)
class HeardIntegration:
    """An integration that sent something in the last seven days.

    Attributes
    ----------
    unguarded_sessions
        Sessions whose calls nobody asked about before they ran: nothing of them can be blocked.
    """

    name: str
    last_heard_at: datetime
    sessions: int
    calls: int
    unguarded_sessions: int


def heard_integrations(project_id: int) -> list[HeardIntegration]:
    """List the integrations of a project, the latest first; reads its sessions of the last seven days."""
    rows = (
        Session.objects.filter(
            project_id=project_id,
            is_demo=False,
            last_event_at__gte=timezone.now() - timedelta(days=HEARD_DAYS),
        )
        .exclude(integration="")
        .values("integration")
        .annotate(
            heard=Max("last_event_at"),
            number=Count("id"),
            calls=Sum("call_count"),
            unguarded=Count("id", filter=_UNGUARDED),
        )
        .order_by("-heard")
    )
    return [
        HeardIntegration(row["integration"], row["heard"], row["number"], row["calls"] or 0, row["unguarded"])
        for row in rows
    ]


def is_observed_only(session: Session) -> bool:
    """Return whether results of a session arrive, but LoopGuard was not asked before its calls."""
    return Session.objects.filter(_UNGUARDED, pk=session.pk).exists()


_RESULTS = Event.objects.filter(session_id=OuterRef("pk"), type=EventType.RESULT)
_UNGUARDED = Q(integration="events", call_count__gt=0) | (
    Q(integration__startswith="hooks/", call_count=0) & Q(Exists(_RESULTS))
)
