"""What happens now in a project: the loops that run, what they cost, and the sessions that fell silent in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import QuerySet

from detection import clock
from detection.models import Approval, Incident, Session, SessionState, StoppedByKind
from detection.models.approvals import ApprovalState
from detection.models.incidents import IS_LOOP
from detection.models.session_state import STOP_STATES, looping_now_condition, state_condition

MAX_SESSIONS = 200
"""Looping sessions that are looked at, the costliest ones; more fit no page. A judgement."""
RATE_SPAN = timedelta(minutes=5)
"""Costs and calls a minute are those of this time."""
CURVE_MINUTES = 60
MAX_CURVE_INCIDENTS = 500
"""Incidents of the last hour whose calls are added up for the curve, the latest ones; a judgement."""
SILENT_SHOWN = STOPPED_SHOWN = 5
STOPPED_WITHIN = timedelta(minutes=15)
"""How long Now shows what has come of a person's stop; a judgement."""

_RATE = """
SELECT w.session_id, coalesce(sum(e.cost_usd), 0), count(*) FILTER (WHERE e.type = 'call')
FROM unnest(%(sessions)s::bigint[], %(first)s::int[]) AS w (session_id, first_seq)
JOIN detection_event e ON e.project_id = %(project)s AND e.session_id = w.session_id AND e.seq >= w.first_seq
WHERE e.received_at > %(since)s GROUP BY 1
"""
# Several incidents may have the same calls; each call counts once.
_CURVE = """
SELECT minute, sum(cost_usd) FROM (
    SELECT DISTINCT e.session_id, e.seq, e.cost_usd,
        floor(extract(epoch FROM %(now)s::timestamptz - e.received_at) / 60)::int AS minute
    FROM (
        SELECT session_id, first_seq, last_seq FROM detection_incident
        WHERE project_id = %(project)s AND last_seen_at > %(since)s AND session_id IS NOT NULL
        AND label IS DISTINCT FROM 'false_alarm'
        ORDER BY last_seen_at DESC LIMIT %(limit)s
    ) AS i
    JOIN detection_event e ON e.project_id = %(project)s AND e.session_id = i.session_id
        AND e.seq BETWEEN i.first_seq AND i.last_seq
    WHERE e.received_at > %(since)s AND e.received_at <= %(now)s AND e.cost_usd > 0
) AS calls GROUP BY 1
"""


@dataclass(slots=True)
class LoopingNow:
    """A loop that runs now, in one or several sessions.

    Attributes
    ----------
    incident
        The latest incident of its costliest session.
    sessions
        The costliest first.
    calls
        Calls in the loop, over all sessions.
    usd_per_minute, calls_per_minute
        Of the last five minutes.
    held
        How many of its calls wait for a person.
    """

    incident: Incident
    sessions: list[Session] = field(default_factory=list)
    calls: int = 0
    since: datetime | None = None
    usd_per_minute: float = 0.0
    calls_per_minute: float = 0.0
    held: int = 0

    @property
    def reaches(self) -> Counter[str]:
        """How many sessions have each reach."""
        return Counter(one.reach for one in self.sessions)

    @property
    def to_stop(self) -> list[Session]:
        """The sessions that nobody and nothing has stopped yet."""
        return [one for one in self.sessions if not one.stopped_by_kind]

    @property
    def agents(self) -> list[str]:
        """The agents, in the order of their sessions."""
        return [*dict.fromkeys(one.agent for one in self.sessions if one.agent)]


@dataclass(frozen=True, slots=True)
class Moment:
    """What happens now.

    Attributes
    ----------
    loops
        The costliest first, of at most `MAX_SESSIONS` sessions.
    sessions
        How many sessions are looping, counted up to `MAX_SESSIONS`.
    silent
        The sessions that fell silent in a loop, the latest first, each with its latest incident.
    silent_count
        How many there are, counted up to `MAX_SESSIONS`.
    stopped
        The sessions that a person has just stopped, the latest stop first; those that have ended since, too.
    running
        Sessions that call tools without a loop, counted up to `MAX_SESSIONS`; only where nothing loops.
    last
        The loop seen last; only where nothing loops.
    """

    loops: list[LoopingNow]
    sessions: int
    silent: list[tuple[Session, Incident | None]]
    silent_count: int
    stopped: list[Session]
    running: int
    last: Incident | None

    @property
    def usd_per_minute(self) -> float:
        """What all of them cost a minute."""
        return sum(one.usd_per_minute for one in self.loops)

    @property
    def calls_per_minute(self) -> float:
        """How many calls all of them make a minute."""
        return sum(one.calls_per_minute for one in self.loops)


def moment(project_id: int) -> Moment:
    """Return what happens now in a project; eight bounded queries."""
    now = clock.now()
    rows = Session.objects.filter(project_id=project_id)
    looping = [*rows.filter(looping_now_condition(now)).order_by("-cost_usd", "-pk")[:MAX_SESSIONS]]
    silent_rows = rows.filter(state_condition(SessionState.SILENT, now))
    silent = [*silent_rows.order_by("-last_event_at", "-pk")[:SILENT_SHOWN]]
    incidents = _latest_incidents(project_id, [*looping, *silent])
    loops = _loops(project_id, looping, incidents, now)
    running = rows.filter(state_condition(SessionState.RUNNING, now)).order_by()
    just_stopped = rows.filter(
        state__in=(*STOP_STATES, SessionState.ENDED),
        stopped_by_kind=StoppedByKind.PERSON,
        stopped_at__gt=now - STOPPED_WITHIN,
    )
    return Moment(
        loops,
        len(looping),
        [(one, incidents.get(one.pk)) for one in silent],
        _bounded(silent_rows.order_by()),
        [*just_stopped.order_by("-stopped_at", "-pk")[:STOPPED_SHOWN]],
        0 if loops else _bounded(running),
        None
        if loops
        else Incident.objects.filter(IS_LOOP, project_id=project_id)
        .select_related("loop")
        .order_by("-last_seen_at")
        .first(),
    )


def _bounded(rows: QuerySet[Session]) -> int:
    return rows.values("pk")[:MAX_SESSIONS].count()


def _latest_incidents(project_id: int, sessions: Sequence[Session]) -> dict[int, Incident]:
    """Return the loop that each session was in last, among those that go on."""
    if not sessions:
        return {}
    found = Incident.objects.filter(
        IS_LOOP, project_id=project_id, session_id__in=[one.pk for one in sessions], ended_at=None
    )
    latest = found.order_by("session_id", "-last_seq", "-pk").distinct("session_id").select_related("loop")
    return {one.session_id: one for one in latest if one.session_id is not None}


def _loops(
    project_id: int, sessions: Iterable[Session], incidents: dict[int, Incident], now: datetime
) -> list[LoopingNow]:
    found: dict[int, LoopingNow] = {}
    in_loops = [one for one in sessions if one.pk in incidents]
    rates = _rates(project_id, {one.pk: incidents[one.pk].first_seq for one in in_loops}, now)
    for session in in_loops:
        incident = incidents[session.pk]
        one = found.setdefault(incident.loop_id, LoopingNow(incident))
        usd, calls = rates.get(session.pk, (0.0, 0.0))
        one.sessions.append(session)
        one.calls += incident.calls_in_loop
        one.since = min(one.since or incident.opened_at, incident.opened_at)
        one.usd_per_minute += usd
        one.calls_per_minute += calls
    held = _held(project_id, [*found])
    for loop_id, one in found.items():
        one.held = held[loop_id]
    return sorted(found.values(), key=lambda one: (-one.usd_per_minute, -one.calls_per_minute, -one.calls))


def _rates(project_id: int, first: dict[int, int], now: datetime) -> dict[int, tuple[float, float]]:
    """Return dollars and calls a minute of each session, from the first call of its loop on."""
    if not first:
        return {}
    minutes = RATE_SPAN.total_seconds() / 60
    with connection.cursor() as cursor:
        cursor.execute(
            _RATE,
            {
                "project": project_id,
                "sessions": [*first],
                "first": [*first.values()],
                "since": now - RATE_SPAN,
            },
        )
        return {row: (float(usd) / minutes, calls / minutes) for row, usd, calls in cursor.fetchall()}


def _held(project_id: int, loop_ids: Sequence[int]) -> Counter[int | None]:
    """Count the calls of loops that wait for a person, also those of sessions that wait and do not loop on."""
    if not loop_ids:
        return Counter()
    rows = Approval.objects.filter(
        project_id=project_id, incident__loop_id__in=loop_ids, state=ApprovalState.OPEN
    )
    return Counter(rows.values_list("incident__loop_id", flat=True))


def curve(project_id: int) -> list[float]:
    """Return what loops cost in each minute of the last hour, in US dollars, the oldest first; one bounded query."""
    now = clock.now()
    with connection.cursor() as cursor:
        cursor.execute(
            _CURVE,
            {
                "project": project_id,
                "now": now,
                "since": now - timedelta(minutes=CURVE_MINUTES),
                "limit": MAX_CURVE_INCIDENTS,
            },
        )
        spent = {minute: float(usd) for minute, usd in cursor.fetchall()}
    return [spent.get(minute, 0.0) for minute in reversed(range(CURVE_MINUTES))]
