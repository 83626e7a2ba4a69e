"""What a new project still needs, and what has arrived of an agent that is being connected."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from django.db import connection
from django.db.models import Q
from django.utils import timezone

from detection.models import Attempt, Event, EventType, Session

ARRIVED_WITHIN: Final = timedelta(days=1)
"""What came by an integration within this time belongs to its connecting; as long as its code is remembered."""
SHOWN_REJECTIONS: Final = 5
LOOKED_AT: Final = 100
"""Sessions with calls that did not run among which the first blocked one is looked for: of others, calls are held."""
_OWN_SESSIONS: Final = (
    "detection_session WHERE project_id = %(project)s AND NOT is_demo AND integration NOT LIKE 'import/%%'"
)
_DONE: Final = {
    "connected": "detection_apikey WHERE project_id = %(project)s AND NOT is_demo AND last_used_at IS NOT NULL",
    "called": f"{_OWN_SESSIONS} AND call_count > 0",
    "stopped": f"{_OWN_SESSIONS} AND blocked_count > 0",
    # A destination that fails announces nothing.
    "has_route": (
        "detection_alertroute AS route"
        " JOIN detection_routedestination AS pair ON pair.project_id = route.project_id AND pair.route_id = route.id"
        " JOIN detection_alertdestination AS target"
        " ON target.project_id = pair.project_id AND target.id = pair.destination_id"
        " WHERE route.project_id = %(project)s AND route.is_enabled AND target.is_enabled"
        " AND target.failures_in_row = 0"
    ),
    "budgeted": (
        "detection_override WHERE project_id = %(project)s AND (values @> '{\"session_budget_enabled\": true}'"
        " OR values @> '{\"budget_enabled\": true}' OR values @> '{\"family_budget_enabled\": true}')"
    ),
    "invited": (
        "(SELECT project_id FROM detection_membership WHERE project_id = %(project)s OFFSET 1) AS others"
        " WHERE project_id = %(project)s"
    ),
    "inviting": (
        "detection_invitation WHERE project_id = %(project)s AND accepted_at IS NULL AND revoked_at IS NULL"
        " AND expires_at > now()"
    ),
}
_QUERY: Final = f"SELECT {', '.join(f'EXISTS (SELECT 1 FROM {rows})' for rows in _DONE.values())}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class SetUp:
    """Which of the six first steps a project has taken."""

    connected: bool
    called: bool
    stopped: bool
    has_route: bool
    budgeted: bool
    invited: bool

    @property
    def done(self) -> int:
        """How many it has taken."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def total(self) -> int:
        """How many there are."""
        return len(fields(self))


def set_up_of(project_id: int) -> SetUp:
    """Return the steps of a project; one statement that reads a row for each step that was taken."""
    with connection.cursor() as cursor:
        cursor.execute(_QUERY, {"project": project_id})
        connected, called, stopped, has_route, budgeted, invited, inviting = cursor.fetchone()
    return SetUp(connected or called, called, stopped, has_route, budgeted, invited or inviting)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What has come of an agent so far: its first call, the first that did not run, and what was rejected."""

    first: Event | None
    first_session: Session | None
    blocked: Event | None
    blocked_session: Session | None
    rejected: list[Attempt]


def arrivals(project_id: int, *, key_id: str = "", integrations: Collection[str] = ()) -> Arrivals:
    """Return what has come with a key or, without one, by some integrations within a day.

    Five small queries, each of the sessions of that key or those integrations.
    """
    since = timezone.now() - ARRIVED_WITHIN
    sessions = Session.objects.filter(project_id=project_id, is_demo=False, last_event_at__gte=since)
    sessions = sessions.filter(api_key=key_id) if key_id else sessions.filter(integration__in=[*integrations])
    first = sessions.filter(call_count__gt=0).order_by("started_at", "id").first()
    blocked = _first_blocked([*sessions.filter(blocked_count__gt=0).order_by("started_at", "id")[:LOOKED_AT]])
    attempts = Attempt.objects.filter(Q(status__gte=400) | Q(rejected__gt=0), at__gte=since)
    mine = Q(project_id=project_id)
    if key_id:
        mine &= Q(key_hint=f"lg_{key_id}")
    return Arrivals(
        _call(first),
        first,
        blocked,
        blocked.session if blocked else None,
        list(attempts.filter(mine | Q(project=None, key_hint="")).order_by("-id")[:SHOWN_REJECTIONS]),
    )


def _call(session: Session | None) -> Event | None:
    if session is None:
        return None
    calls = Event.objects.filter(project_id=session.project_id, session_id=session.pk, type=EventType.CALL)
    return calls.order_by("seq").first()


def _first_blocked(sessions: list[Session]) -> Event | None:
    """Return the first call that was blocked; those of some sessions were only held."""
    if not sessions:
        return None
    calls = Event.objects.filter(
        project_id=sessions[0].project_id,
        session_id__in=[one.pk for one in sessions],
        type=EventType.CALL,
        decision__in=("block", "stop"),
    )
    return calls.select_related("session").order_by("received_at").first()


_COSTS: Final = """
SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY cost_usd), max(cost_usd)
FROM (SELECT cost_usd FROM detection_session WHERE project_id = %s AND cost_usd > 0
      AND last_event_at >= now() - interval '7 days' ORDER BY last_event_at DESC LIMIT 10000) AS recent
"""


@dataclass(frozen=True, slots=True)
class SessionCosts:
    """What sessions of the last seven days cost, in dollars: the median and the most."""

    sessions: int
    median_usd: float
    most_usd: float


def session_costs(project_id: int) -> SessionCosts | None:
    """Return what the newest 10,000 sessions of seven days cost; None if no cost is known."""
    with connection.cursor() as cursor:
        cursor.execute(_COSTS, [project_id])
        sessions, median, most = cursor.fetchone()
    return SessionCosts(sessions, float(median), float(most)) if sessions else None
