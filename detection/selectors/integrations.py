"""Which integrations, keys and agents have sent events to a project, and what can be done to their sessions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from django.db import connection
from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from detection.integrations.reach import NEWEST_CALLS, REACHES, WATCH_ONLY, Reach, reach_of, weakest_of
from detection.models import ApiKey, Session
from detection.models.sessions import IMPORTED
from detection.selectors.row_fields import Shown

HEARD_DAYS = 7
MAX_AGENTS = 1000


@dataclass(frozen=True, slots=True)
class HeardIntegration:
    """An integration that sent something in the last seven days.

    Attributes
    ----------
    watched_sessions
        Sessions that ran calls without requesting verdicts, so that nothing can be blocked.
    """

    name: str
    last_heard_at: datetime
    sessions: int
    calls: int
    watched_sessions: int

    @property
    def reach(self) -> Reach:
        """What can be done to all of its sessions."""
        return WATCH_ONLY if self.watched_sessions else reach_of(self.name)


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
            watched=Count("id", filter=_WATCHED),
        )
        .order_by("-heard")
    )
    return [
        HeardIntegration(row["integration"], row["heard"], row["number"], row["calls"] or 0, row["watched"])
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class HeardKey:
    """Recent use of a key: accepted requests of the seven days before the latest one.

    Attributes
    ----------
    routes
        The routes it was used on, the latest first: `events`, `guard`, `otlp` or `hooks/<host>`.
    last_heard_at
        The latest request that was accepted, to five seconds.
    """

    routes: tuple[str, ...]
    last_heard_at: datetime

    @property
    def reach(self) -> Reach:
        """The weakest of the routes that ask before calls; a client that asks may report, too."""
        asking = {reach_of(route) for route in self.routes} - {WATCH_ONLY}
        return weakest_of(asking) or WATCH_ONLY


def heard_key(key: ApiKey) -> HeardKey | None:
    """Return the recent use of a key; None if nothing was accepted with it."""
    used = {route: datetime.fromisoformat(at) for route, at in key.routes.items()}
    if not used:
        return None
    last = max(used.values())
    recent = (route for route, at in used.items() if last - at <= timedelta(days=HEARD_DAYS))
    return HeardKey(tuple(sorted(recent, key=lambda route: (last - used[route], route))), last)


_WATCHED = Q(reach=WATCH_ONLY) & ~Q(call_reaches="") & ~Q(integration__startswith=IMPORTED)


@dataclass(frozen=True, slots=True)
class HeardAgent:
    """An agent that called something in the last seven days."""

    # fmt: off
    name: Annotated[str, Shown("Name of the agent; empty for sessions without one.")]
    reach: Annotated[str, Shown(
        "What can be done to it: the weakest of its newest ten calls.", choices=REACHES,
    )]
    sessions: Annotated[int, Shown("Its sessions.")]
    calls: Annotated[int, Shown("Their calls.")]
    last_heard_at: Annotated[datetime, Shown("Time of its last event.")]
    # fmt: on


_AGENTS = """
SELECT agent, array_agg(DISTINCT reach) FILTER (WHERE newer < %s), count(*), sum(call_count), max(last_event_at)
FROM (
    SELECT agent, reach, call_count, last_event_at,
        coalesce(sum(call_count) OVER (PARTITION BY agent ORDER BY last_event_at DESC, id DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS newer
    FROM detection_session
    WHERE project_id = %s AND (%s OR NOT is_demo) AND call_reaches <> ''
        AND last_event_at >= now() - make_interval(days => %s)
) heard GROUP BY agent ORDER BY max(last_event_at) DESC LIMIT %s
"""


def heard_agents(project_id: int, *, with_demo: bool = False) -> list[HeardAgent]:
    """List the agents of a project, the latest first; reads its sessions of the last seven days."""
    with connection.cursor() as cursor:
        cursor.execute(_AGENTS, [NEWEST_CALLS, project_id, with_demo, HEARD_DAYS, MAX_AGENTS])
        return [
            HeardAgent(agent, weakest_of({*reaches}) or WATCH_ONLY, sessions, int(calls), heard)
            for agent, reaches, sessions, calls, heard in cursor.fetchall()
        ]
