"""Which integrations have sent events to a project, and which only observe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, Max, OuterRef, Q, Sum
from django.utils import timezone

from detection.models import ApiKey, Event, EventType, Session
from detection.models.sessions import OTLP

HEARD_DAYS = 7
_REPORTING = frozenset(("events", OTLP))
"""Integrations, and routes of the same names, that only report calls."""


@dataclass(frozen=True, slots=True)
class HeardIntegration:
    """An integration that sent something in the last seven days.

    Attributes
    ----------
    unguarded_sessions
        Sessions that ran calls without requesting verdicts, so that nothing could be blocked.
    """

    name: str
    last_heard_at: datetime
    sessions: int
    calls: int
    unguarded_sessions: int

    @property
    def is_observed_only(self) -> bool:
        """Whether some of its sessions are only observed."""
        return self.unguarded_sessions > 0


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
    """Return whether a session reports results without requesting verdicts before its calls."""
    return Session.objects.filter(_UNGUARDED, project_id=session.project_id, pk=session.pk).exists()


@dataclass(frozen=True, slots=True)
class HeardKey:
    """Recent use of a key: accepted requests of the seven days before the latest one.

    Attributes
    ----------
    routes
        The routes it was used on, the latest first: `events`, `guard`, `otlp` or `hooks/<host>`.
    last_heard_at
        The latest request that was accepted, to the minute.
    """

    routes: tuple[str, ...]
    last_heard_at: datetime

    @property
    def is_observed_only(self) -> bool:
        """Whether it only reports calls, so that nothing can be blocked."""
        return {*self.routes} <= _REPORTING


def heard_key(key: ApiKey) -> HeardKey | None:
    """Return the recent use of a key; None if nothing was accepted with it."""
    used = {route: datetime.fromisoformat(at) for route, at in key.routes.items()}
    if not used:
        return None
    last = max(used.values())
    recent = (route for route, at in used.items() if last - at <= timedelta(days=HEARD_DAYS))
    return HeardKey(tuple(sorted(recent, key=lambda route: (last - used[route], route))), last)


_RESULTS = Event.objects.filter(project=OuterRef("project"), session_id=OuterRef("pk"), type=EventType.RESULT)
_UNGUARDED = Q(integration__in=_REPORTING, call_count__gt=0) | (
    Q(integration__startswith="hooks/", call_count=0) & Q(Exists(_RESULTS))
)
