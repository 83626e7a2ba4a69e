"""Figures for the console: activity of a project, received events, changes, and the health of the processes.

Counts are bounded, so a page of a large project costs no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import BooleanField, Count, ExpressionWrapper, Max, Min, Q, Sum
from django.utils import timezone

from detection import clock
from detection.models import ApiKey, Attempt, Incident, Session, SessionState
from detection.models.events import DAYS_PER_PARTITION, oldest_kept_day
from detection.models.session_state import (
    RARE_STATES,
    STOP_STATES,
    in_loop_condition,
    looping_now_condition,
    shown_state_expression,
    state_condition,
)
from detection.selectors.filters import ListQuery
from detection.selectors.sessions import ALL_SESSIONS

COUNTED_SESSIONS = 10_000
MAX_IN_NAVIGATION = 1000
MAX_FACETS = 60


def looping_sessions(project_id: int) -> int:
    """Count the sessions looping now, up to `MAX_IN_NAVIGATION`; one bounded query."""
    return _bounded(Session.objects.filter(looping_now_condition(), project_id=project_id))


def _bounded(rows: Any, limit: int = MAX_IN_NAVIGATION) -> int:
    return int(rows.order_by().values("pk")[:limit].count())


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Number of sessions in each state.

    Attributes
    ----------
    looping_now, in_loop
        Sessions in which the calls of a loop run now, those that a stop does not reach included, and all that are in a
        loop, whatever their state.
    is_capped
        The project has more than `COUNTED_SESSIONS` sessions: `all`, `idle` and `ended` count the newest of them only.
    """

    all: int
    running: int
    looping: int
    silent: int
    held: int
    stopping: int
    stopped: int
    calls_blocked: int
    stop_unenforced: int
    still_calling: int
    idle: int
    ended: int
    looping_now: int
    in_loop: int
    is_capped: bool

    @property
    def active(self) -> int:
        """Sessions that have not ended."""
        return sum(getattr(self, state) for state in SessionState.values if state != SessionState.ENDED)

    @property
    def to_stop(self) -> int:
        """Sessions that are to be stopped, whatever has come of it."""
        return sum(getattr(self, state) for state in STOP_STATES)


def state_counts(project_id: int, query: ListQuery = ALL_SESSIONS) -> StateCounts:
    """Count sessions by state under the query of the list, except its terms of the field `is`.

    One query over at most 10,000 rows of an index; two more, by index, in projects with more sessions.
    """
    wanted, now = query.condition(without=("is",)), clock.now()
    newest = Session.objects.filter(project_id=project_id).order_by("-last_event_at", "-id")
    counted = newest.annotate(
        shown=shown_state_expression(now),
        fits=ExpressionWrapper(Q(pk__isnull=False) & wanted, BooleanField()),
        loops=ExpressionWrapper(looping_now_condition(now), BooleanField()),
        is_in_loop=ExpressionWrapper(in_loop_condition(now), BooleanField()),
    )
    found = counted.values("pk", "shown", "fits", "loops", "is_in_loop")[:COUNTED_SESSIONS].aggregate(
        seen=Count("pk"),
        all=Count("pk", filter=Q(fits=True)),
        looping_now=Count("pk", filter=Q(fits=True, loops=True)),
        in_loop=Count("pk", filter=Q(fits=True, is_in_loop=True)),
        **{state: Count("pk", filter=Q(fits=True, shown=state)) for state in SessionState.values},
    )
    is_capped = found.pop("seen") >= COUNTED_SESSIONS
    if is_capped:
        matching = newest.filter(wanted).order_by()
        rare = matching.filter(state__in=RARE_STATES).annotate(shown=shown_state_expression(now))
        shown = dict(rare.values_list("shown").annotate(Count("pk")))
        found |= {state: shown.get(state, 0) for state in (*RARE_STATES, SessionState.SILENT)}
        looping = matching.filter(state__in=RARE_STATES)
        found["looping_now"] = looping.filter(looping_now_condition(now)).count()
        found["in_loop"] = looping.filter(in_loop_condition(now)).count()
        found["running"] = matching.filter(state_condition(SessionState.RUNNING, now)).count()
    return StateCounts(is_capped=is_capped, **found)


def recent_sessions_by_state() -> dict[str, int]:
    """Count all projects' sessions that had an event in the last hour, for the metrics; every state is there."""
    rows = Session.objects.filter(last_event_at__gt=clock.now() - timedelta(hours=1)).order_by()
    found = dict(rows.annotate(shown=shown_state_expression()).values_list("shown").annotate(Count("pk")))
    return {state: found.get(state, 0) for state in SessionState.values}


def sessions_in_loops() -> tuple[int, int]:
    """Count all projects' sessions in which the calls of a loop run now, and those in a loop, for the metrics."""
    rows = Session.objects.filter(state__in=RARE_STATES)
    return rows.filter(looping_now_condition()).count(), rows.filter(in_loop_condition()).count()


@dataclass(frozen=True, slots=True)
class Facets:
    """The values that filters offer, from the newest sessions."""

    agents: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


def facets(project_id: int, *, sessions: int = 1000) -> Facets:
    """Collect the names that the newest sessions use; one query."""
    rows = list(
        Session.objects.filter(project_id=project_id)
        .order_by("-last_event_at", "-id")
        .values_list("agent", "backend", "model", "last_tool")[:sessions]
    )

    def column(index: int) -> tuple[str, ...]:
        return tuple(sorted({row[index] for row in rows if row[index]})[:MAX_FACETS])

    pairs = sorted({(row[1], row[2]) for row in rows if row[1]})[: MAX_FACETS * 2]
    return Facets(column(0), column(1), column(2), column(3), tuple(pairs))


def has_demo(project_id: int) -> bool:
    """Return whether the project has sessions of the demo."""
    return (
        Session.objects.filter(project_id=project_id, is_demo=True).exists()
        or Incident.objects.filter(project_id=project_id, is_demo=True).exists()
    )


def attempts(
    project_id: int, limit: int = 50, *, rejected_only: bool = False, without_demo: bool = False
) -> list[Attempt]:
    """List the newest requests that reached the project's API, rejected ones included, those of the demo if wanted.

    Requests without a known key belong to no project; they are shown to everyone who may see this page, because they
    help to set up an agent. They contain no data.
    """
    rows = Attempt.objects.filter(
        Q(project_id=project_id) | Q(project=None, at__gte=timezone.now() - timedelta(hours=1))
    )
    if rejected_only:
        rows = rows.filter(Q(status__gte=400) | Q(rejected__gt=0) | Q(altered__gt=0))
    if without_demo:
        demo = ApiKey.objects.filter(project_id=project_id, is_demo=True).values_list("public_id", flat=True)
        rows = rows.exclude(key_hint__in=[f"lg_{public_id}" for public_id in demo])
    return list(rows.order_by("-id")[:limit])


@dataclass(frozen=True, slots=True)
class Intake:
    """Outcomes of the stored requests."""

    requests: int
    accepted: int
    duplicate: int
    altered: int
    rejected: int
    rejected_requests: int
    since: datetime | None
    by_code: tuple[tuple[str, int, int], ...] = ()
    by_key: tuple[dict[str, object], ...] = ()
    recent: tuple[Attempt, ...] = field(default_factory=tuple)


def intake(project_id: int) -> Intake:
    """Return the totals of the stored requests of a project, whose number is bounded."""
    rows = Attempt.objects.filter(project_id=project_id)
    total = rows.aggregate(
        requests=Sum("times"),
        accepted=Sum("accepted"),
        duplicate=Sum("duplicate"),
        altered=Sum("altered"),
        rejected=Sum("rejected"),
        rejected_requests=Sum("times", filter=Q(status__gte=400)),
        since=Min("at"),
    )
    codes = rows.exclude(code="").values_list("code", "status").annotate(n=Sum("times")).order_by("-n")[:20]
    keys = (
        rows.exclude(key_hint="")
        .values("key_hint")
        .annotate(
            requests=Sum("times"),
            accepted=Sum("accepted"),
            rejected_requests=Sum("times", default=0, filter=Q(status__gte=400)),
            last=Max("at"),
        )
        .order_by("-requests")[:20]
    )
    figures = {name: value or 0 for name, value in total.items() if name != "since"}
    return Intake(
        **figures,
        since=total["since"],
        by_code=tuple((code, status, n) for code, status, n in codes),
        by_key=tuple(dict(row) for row in keys),
        recent=tuple(attempts(project_id, 60)),
    )


@dataclass(frozen=True, slots=True)
class PastWeek:
    """The events of sessions that started in a past week; space of deleted sessions is freed only with the whole week.

    Attributes
    ----------
    size
        Bytes on the disk.
    returned_at
        When the last session is past its retention, unless it gets another event; None if all are deleted.
    """

    first_day: date
    size: int
    returned_at: datetime | None


SHOWN_WEEKS = 3
_PAST_WEEKS = """
SELECT day, bytes FROM (
    SELECT split_part(c.relname, '_', 3)::int AS day, pg_total_relation_size(c.oid) AS bytes
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'detection_event'::regclass AND c.relname ~ '^detection_event_[0-9]{1,8}$'
) weeks WHERE day < %s ORDER BY day LIMIT %s
"""
_RETURNED_AT = """
SELECT max(s.last_event_at + make_interval(days => p.retention_days))
FROM detection_session s JOIN detection_project p ON p.id = s.project_id WHERE s.id >= %s AND s.id < %s
    AND s.packed_at IS NULL
"""


def past_weeks() -> tuple[PastWeek, ...]:
    """Return the oldest weeks whose events are stored together; costs a scan of their sessions."""
    with connection.cursor() as cursor:
        cursor.execute(_PAST_WEEKS, [oldest_kept_day(), SHOWN_WEEKS])
        weeks = []
        for day, size in cursor.fetchall():
            cursor.execute(_RETURNED_AT, [day << 32, (day + DAYS_PER_PARTITION) << 32])
            weeks.append(PastWeek(date(1970, 1, 1) + timedelta(days=day), size, cursor.fetchone()[0]))
        return tuple(weeks)


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """State of detection and size of the database."""

    sessions_waiting: int
    oldest_waiting_since: datetime | None
    missed_guard_requests: int
    database_bytes: int
    connections: int
    event_partitions: int
    events: RowCount
    sessions: RowCount
    migration: str
    now: datetime


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a table has.

    Attributes
    ----------
    rows
        Counted up to `COUNTED_ROWS`, estimated beyond.
    bound
        Empty if they were counted; else `about`, or `more than` where PostgreSQL knows too few, as of new tables and
        of those on nodes.
    """

    rows: int
    bound: str = ""


COUNTED_ROWS = 10_000
"""Some milliseconds, whatever the size of the table."""
# As the planner estimates: rows in a page when it was last analysed, in the pages of today. Never analysed is -1.
_ESTIMATED = """
SELECT sum(c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::int))
FROM (SELECT %(table)s::regclass UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = %(table)s::regclass)
    AS part (id)
JOIN pg_class c ON c.oid = part.id WHERE c.reltuples > 0 AND c.relpages > 0
"""


def _row_count(table: str) -> RowCount:
    with connection.cursor() as cursor:
        cursor.execute(_ESTIMATED, {"table": table})
        estimated = int(cursor.fetchone()[0] or 0)
        if estimated > 10 * COUNTED_ROWS:
            return RowCount(estimated, "about")
        first = f"SELECT 1 AS one FROM {table} LIMIT %s"  # noqa: S608 - a table of our own
        cursor.execute(f"SELECT count(*) FROM ({first}) AS found", [COUNTED_ROWS + 1])  # noqa: S608 - the same
        counted = cursor.fetchone()[0]
    if counted <= COUNTED_ROWS:
        return RowCount(counted)
    return RowCount(estimated, "about") if estimated > COUNTED_ROWS else RowCount(COUNTED_ROWS, "more than")


def system_status(project_id: int) -> SystemStatus:
    """Return the progress of detection and the size of the database; many rows are estimated rather than counted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), min(pending_since) FROM (SELECT pending_since FROM detection_session"
            " WHERE evaluated_seq < last_seq ORDER BY pending_since LIMIT 10000) w"
        )
        waiting, oldest = cursor.fetchone()
        cursor.execute(
            "SELECT pg_database_size(current_database()), "
            " (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()),"
            " (SELECT count(*) FROM pg_inherits WHERE inhparent = 'detection_event'::regclass),"
            " (SELECT name FROM django_migrations WHERE app = 'detection' ORDER BY name DESC LIMIT 1), now()"
        )
        size, connections, partitions, migration, now = cursor.fetchone()
    return SystemStatus(
        waiting,
        oldest,
        missed_guard_requests(project_id),
        size,
        connections,
        partitions,
        _row_count("detection_event"),
        _row_count("detection_session"),
        migration or "–",
        now,
    )


def missed_guard_requests(project_id: int) -> int:
    """Count the guard requests of the last hour that were not answered in time."""
    rows = Attempt.objects.filter(
        project_id=project_id,
        at__gt=timezone.now() - timedelta(hours=1),
        route="guard",
        status=503,
        code="unavailable",
    )
    return rows.aggregate(missed=Sum("rejected"))["missed"] or 0


def newest_incidents_of_session(session: Session, limit: int) -> list[Incident]:
    """List the incidents of a session that began last, the newest first, without their policy."""
    rows = Incident.objects.filter(session=session).select_related("loop").defer("policy")
    return list(rows.order_by("-first_seq")[:limit])
