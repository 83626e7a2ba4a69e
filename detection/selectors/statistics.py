"""Statistics of detection: calls from the hourly counts, findings from the incidents.

Rows of both are merged by the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal

from django.db import connection
from django.db.models import Avg, Case, Count, F, FloatField, OuterRef, Q, QuerySet, Subquery, Sum, When
from django.db.models.functions import Cast, Coalesce, Greatest, NullIf, Trunc

from detection.filtering.time_ranges import ALL_TIME
from detection.models import CallCount, CountingCursor, Incident, JudgeCall, JudgeLabel
from detection.models.incidents import IS_LOOP, IncidentLabel
from detection.selectors.filters import ListQuery
from detection.selectors.lists import CALL_COUNTS, REACTED, RECOVERED, RUNGS

By = Literal["hour", "day", "kind", "tool", "model", "backend"]
MAX_ROWS = 1000


@dataclass(slots=True)
class Numbers:
    """The numbers of one row.

    Attributes
    ----------
    checks, warned, blocked
        Evaluated calls, those with a warning, and those whose verdict was to block, hold or stop, whatever became of a
        held call. None for rows that calls cannot be counted for (a detector).
    cost_usd
        Of all calls.
    loop_calls, loop_cost_usd
        Sums of `counted_calls` and `cost_usd` of the incidents that nobody labelled "not a loop", see `IS_LOOP`.
    incidents, loops
        A loop that several detectors find is one loop and several incidents.
    recovered, not_recovered
        Ended incidents with a reaction: those whose agent recovered after one, and the others.
    saved_cost_usd_estimate
        Blocked calls of the same incidents as `loop_cost_usd`, each at the average cost of the calls that its incident counts,
        or of those of its loop if that counts none.
        None if no such cost is known. Calls outside these loops do not change it.
    """

    checks: int | None = None
    warned: int | None = None
    blocked: int | None = None
    token_count: int | None = None
    cost_usd: float | None = None
    incidents: int = 0
    blocked_incidents: int = 0
    loops: int = 0
    findings: int = 0
    true_loops: int = 0
    false_alarms: int = 0
    average_confidence: float | None = None
    recovered: int = 0
    not_recovered: int = 0
    loop_calls: int = 0
    loop_calls_blocked: int = 0
    loop_cost_usd: float = 0.0
    saved_cost_usd_estimate: float | None = None

    @property
    def precision(self) -> float | None:
        """Share of true loops among the labelled incidents; None without labels."""
        labelled = self.true_loops + self.false_alarms
        return self.true_loops / labelled if labelled else None

    @property
    def recovery(self) -> float | None:
        """Share of ended incidents with a reaction after which the agent recovered; None if there are none."""
        ended = self.recovered + self.not_recovered
        return self.recovered / ended if ended else None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What agents did after one rung of the ladder."""

    rung: str
    recovered: int
    went_on: int
    stopped: int
    incidents: Mapping[str, int]
    """How many incidents have each of the three outcomes."""

    @property
    def share(self) -> float | None:
        """Share of reactions after which the agent changed course."""
        total = self.recovered + self.went_on + self.stopped
        return self.recovered / total if total else None


@dataclass(frozen=True, slots=True)
class JudgeShare:
    """Consultations of the judge by outcome, see `JudgeOutcome`; `right` and `wrong` count those that people labelled."""

    outcome: str
    count: int
    average_latency_ms: float
    token_count: int
    cost_usd: float
    right: int = 0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One group: its name (a time, a tool …), its numbers, and the parts of the name: for a model, backend and model."""

    key: str
    numbers: Numbers
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Totals, groups, and the time up to which calls are counted."""

    start: datetime
    end: datetime
    total: Numbers
    rows: tuple[Row, ...] = ()
    recovery: tuple[Recovery, ...] = ()
    judge: tuple[JudgeShare, ...] = ()
    counted_at: datetime | None = None
    is_cut: bool = field(default=False)
    false_alarms: tuple[tuple[str, int], ...] = ()
    """Incidents labelled "not a loop" by reason (see `LabelReason`), the most frequent first."""


def statistics(project_id: int, query: ListQuery, by: By | None = None) -> Statistics:
    """Count what happened in a time range.

    Parameters
    ----------
    query
        Of the list `STATISTICS`, with both ends of the range. Calls are counted by whole hours that begin in it, incidents by when
        they were opened. Terms that calls have no field for, such as an agent, yield no numbers of calls. Days are
        those of the query's time zone.
    by
        What to group by; None for the totals only.

    Returns
    -------
    Statistics
        At most 1,000 rows, see `groups`. Reads the hourly rows and the incidents of the range, no event.
    """
    calls, found = _counted(project_id, query)
    total = _merged(
        [] if calls is None else [((), calls.aggregate(**_CALL_SUMS))],
        [((), found.aggregate(**_INCIDENT_SUMS, **_LOOP_SUMS))],
        has_calls=calls is not None,
    )[()]
    rows, is_cut = groups(project_id, query, by, of_loops=True) if by else ((), False)
    counted_at = CountingCursor.objects.values_list("counted_at", flat=True).first()
    start, end = _ends(query)
    recovery, judge = _recovery(found), _judge(project_id, query)
    return Statistics(start, end, total, rows, recovery, judge, counted_at, is_cut, _false_alarms(found))


def groups(
    project_id: int, query: ListQuery, by: By, *, of_loops: bool = False
) -> tuple[tuple[Row, ...], bool]:
    """Like `statistics`, but only the groups, at a third of its cost. Without `of_loops`, `loops` is 0 and the saved cost None.

    Returns
    -------
    tuple
        At most 1,000 rows: the newest for hours and days, else those with the most incidents, then calls; and whether there
        were more.
    """
    calls, found = _counted(project_id, query)
    call_by, incident_by = _grouping(by, query.zone)
    calls = calls if call_by else None
    merged = _merged(
        () if calls is None else _grouped(calls, call_by, _CALL_SUMS),
        _grouped(found, incident_by, _INCIDENT_SUMS | (_LOOP_SUMS if of_loops else {})),
        has_calls=calls is not None,
    )
    rows = [Row("/".join(parts), numbers, parts) for parts, numbers in merged.items()]
    if by in ("hour", "day"):
        rows.sort(key=lambda row: row.key)
        shown = rows[-MAX_ROWS:]
    else:
        rows.sort(key=lambda row: (-row.numbers.incidents, -(row.numbers.checks or 0), row.key))
        shown = rows[:MAX_ROWS]
    return tuple(shown), len(rows) > MAX_ROWS


def _ends(query: ListQuery) -> tuple[datetime, datetime]:
    start, end = query.range.start, query.range.end
    assert start is not None and end is not None  # noqa: PT018, S101 - promised by the caller
    return start, end


def _false_alarms(found: QuerySet[Incident]) -> tuple[tuple[str, int], ...]:
    rows = found.filter(label=IncidentLabel.FALSE_ALARM).order_by().values_list("label_reason")
    return tuple(sorted(rows.annotate(Count("pk")), key=lambda row: (-row[1], row[0])))


def _counted(project_id: int, query: ListQuery) -> tuple[QuerySet[CallCount] | None, QuerySet[Incident]]:
    """Return the counts of calls and the incidents of a query; None for calls under terms that they have no field for."""
    found = Incident.objects.filter(query.condition(), project_id=project_id)
    known = {one.name for one in CALL_COUNTS.fields}
    if any(term.field not in known for term in query.terms):
        return None, found
    condition = replace(query, spec=CALL_COUNTS).condition()
    return CallCount.objects.filter(condition, project_id=project_id), found


def _judge(project_id: int, query: ListQuery) -> tuple[JudgeShare, ...]:
    """Count the consultations of the range; with terms, those about the incidents that match, whenever they were opened."""
    start, end = _ends(query)
    consulted = JudgeCall.objects.filter(project_id=project_id, at__gte=start, at__lt=end)
    if query.terms or query.is_empty:
        matching = Incident.objects.filter(replace(query, range=ALL_TIME).condition(), project_id=project_id)
        consulted = consulted.filter(incident__in=matching)
    rows = (
        consulted.order_by()
        .values_list("outcome")
        .annotate(
            Count("id"),
            Avg("latency_ms"),
            tokens=Sum(F("input_tokens") + F("output_tokens")),
            cost=Sum("cost_usd"),
            right=Count("id", filter=Q(label=JudgeLabel.RIGHT)),
            wrong=Count("id", filter=Q(label=JudgeLabel.WRONG)),
        )
    )
    return tuple(
        JudgeShare(outcome, count, float(latency or 0), int(tokens or 0), float(cost or 0), right, wrong)
        for outcome, count, latency, tokens, cost, right, wrong in sorted(rows)
    )


def judge_calls_by_outcome() -> list[tuple[str, str, int]]:
    """Count the stored consultations of all projects, for the metrics: (project, outcome, number)."""
    rows = JudgeCall.objects.order_by().values_list("project__slug", "outcome").annotate(Count("id"))
    return sorted(rows)


def _grouping(by: By, zone: tzinfo) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what calls and incidents are grouped by; calls know no detector."""
    if by in ("hour", "day"):
        return (Trunc("hour", by, tzinfo=zone),), (Trunc("opened_at", by, tzinfo=zone),)
    if by == "model":
        return (F("backend"), F("model")), (F("backend"), F("model"))
    if by in ("tool", "backend"):
        return (F(by),), (F(by),)
    return (), (F("kind"),)


def _parts(parts: Iterable[Any]) -> tuple[str, ...]:
    return tuple(
        part.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(part, datetime) else str(part)
        for part in parts
    )


_CALL_SUMS = {
    "sum_checks": Coalesce(Sum("checks"), 0),
    "sum_warned": Coalesce(Sum("warned"), 0),
    "sum_blocked": Coalesce(Sum("blocked"), 0),
    "sum_tokens": Coalesce(Sum("token_count"), 0),
    "sum_cost": Sum("cost_usd"),
}
_CALL_OF_LOOP = (
    Incident.objects.filter(IS_LOOP, project_id=OuterRef("project_id"), group_id=OuterRef("group_id"))
    .order_by()
    .values("group_id")
    .annotate(
        # Without the upper bound, a blocked call that no incident of the loop counts would lower the average for nothing.
        average=NullIf(Cast(Sum("cost_usd"), FloatField()), 0.0)
        / Greatest(Sum("counted_calls"), Sum("calls_blocked"), 1)
    )
    .values("average")
)
"""The average cost of a call of a loop, over all its incidents: whichever of them counts its calls."""

_BLOCKED_IN_LOOP = IS_LOOP & Q(calls_blocked__gt=0)

_INCIDENT_SUMS = {
    "all_incidents": Count("pk"),
    "with_blocked": Count("pk", filter=Q(calls_blocked__gt=0)),
    "sum_findings": Coalesce(Sum("detections"), 0),
    "true_loops": Count("pk", filter=Q(label="true_loop")),
    "false_alarms": Count("pk", filter=Q(label="false_alarm")),
    "mean_confidence": Avg("confidence"),
    "count_recovered": Count("pk", filter=RECOVERED & Q(ended_at__isnull=False)),
    "count_reacted": Count("pk", filter=REACTED & Q(ended_at__isnull=False)),
    "sum_loop_calls": Coalesce(Sum("counted_calls", filter=IS_LOOP), 0),
    "sum_loop_blocked": Coalesce(Sum("calls_blocked"), 0),
    "sum_loop_cost": Sum("cost_usd", filter=IS_LOOP),
}
_LOOP_SUMS = {
    "all_loops": Count("group_id", distinct=True),
    "sum_saved": Sum(
        Case(
            # Few count no call; only for these are the other incidents of the loop read.
            When(
                _BLOCKED_IN_LOOP & Q(counted_calls__gt=0),
                then=F("calls_blocked")
                * NullIf(Cast("cost_usd", FloatField()), 0.0)
                / Greatest("counted_calls", "calls_blocked"),
            ),
            When(
                _BLOCKED_IN_LOOP,
                then=F("calls_blocked") * Subquery(_CALL_OF_LOOP, output_field=FloatField()),
            ),
            output_field=FloatField(),
        )
    ),
}


def _grouped(
    rows: QuerySet[Any], by: tuple[Any, ...], sums: dict[str, Any]
) -> Iterable[tuple[tuple[str, ...], dict[str, Any]]]:
    names = tuple(f"by_{number}" for number in range(len(by)))
    for row in rows.order_by().values(**dict(zip(names, by, strict=True))).annotate(**sums):
        yield _parts(row[name] for name in names), row


def _merged(
    calls: Iterable[tuple[tuple[str, ...], dict[str, Any]]],
    found: Iterable[tuple[tuple[str, ...], dict[str, Any]]],
    *,
    has_calls: bool,
) -> dict[tuple[str, ...], Numbers]:
    merged: dict[tuple[str, ...], Numbers] = {}

    def numbers(key: tuple[str, ...]) -> Numbers:
        if key not in merged:
            merged[key] = (
                Numbers(checks=0, warned=0, blocked=0, token_count=0, cost_usd=0.0)
                if has_calls
                else Numbers()
            )
        return merged[key]

    for key, row in calls:
        one = numbers(key)
        one.checks, one.warned, one.blocked = row["sum_checks"], row["sum_warned"], row["sum_blocked"]
        one.token_count, one.cost_usd = row["sum_tokens"], float(row["sum_cost"] or 0)
    for key, row in found:
        one = numbers(key)
        one.blocked_incidents = row["with_blocked"]
        one.incidents, one.loops, one.findings = (
            row["all_incidents"],
            row.get("all_loops", 0),
            row["sum_findings"],
        )
        one.true_loops, one.false_alarms = row["true_loops"], row["false_alarms"]
        one.average_confidence = row["mean_confidence"]
        one.recovered, one.not_recovered = (
            row["count_recovered"],
            row["count_reacted"] - row["count_recovered"],
        )
        one.loop_calls, one.loop_calls_blocked = row["sum_loop_calls"], row["sum_loop_blocked"]
        one.loop_cost_usd = float(row["sum_loop_cost"] or 0)
        one.saved_cost_usd_estimate = row.get("sum_saved")
    return merged


def _recovery(rows: QuerySet[Incident]) -> tuple[Recovery, ...]:
    """Return what agents did after each reaction, as counted in the incidents; incidents without reactions are not read."""
    sql, parameters = rows.exclude(decision="allow").order_by().values("evidence").query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT rung.key, outcome.key, sum(outcome.value::int),"  # noqa: S608  (our own statement)
            " count(*) FILTER (WHERE outcome.value::int > 0) FROM ("
            + sql
            + ") AS rows, jsonb_each(rows.evidence->'reactions') AS rung, jsonb_each_text(rung.value) AS outcome"
            " WHERE jsonb_typeof(rows.evidence->'reactions') = 'object' GROUP BY 1, 2",
            parameters,
        )
        counts: dict[str, dict[str, int]] = defaultdict(dict)
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for rung, outcome, count, incidents in cursor.fetchall():
            counts[rung][outcome] = count
            found[rung][outcome] = incidents
    return tuple(
        Recovery(
            rung,
            counts[rung].get("recovered", 0),
            counts[rung].get("went_on", 0),
            counts[rung].get("stopped", 0),
            found[rung],
        )
        for rung in sorted(counts, key=lambda rung: RUNGS.index(rung) if rung in RUNGS else len(RUNGS))
    )


def totals_by_project() -> list[tuple[str, int, int, int, float]]:
    """Return every project's totals of calls since counting began, without demo sessions, for metrics."""
    rows = (
        CallCount.objects.filter(is_demo=False)
        .order_by("project__slug")
        .values_list("project__slug")
        .annotate(Sum("checks"), Sum("warned"), Sum("blocked"), Sum("cost_usd"))
    )
    return [(slug, checks, warned, blocked, float(cost or 0)) for slug, checks, warned, blocked, cost in rows]


def incidents_by_kind() -> list[tuple[str, str, str, int]]:
    """Count every project's incidents by detector and label, without demo sessions, for metrics."""
    rows = (
        Incident.objects.filter(is_demo=False)
        .order_by("project__slug", "kind", "label")
        .values_list("project__slug", "kind", "label")
        .annotate(Count("pk"))
    )
    return [(slug, kind, label or "none", count) for slug, kind, label, count in rows]


MAX_LABEL_VALUES = 50
"""Tools and models with labels of their own in the metrics; the others count as `other`."""


@dataclass(frozen=True, slots=True)
class IncidentTotals:
    """Sums over the incidents of one detector, tool or model in one project."""

    project: str
    name: str
    count: int
    recovered: int
    not_recovered: int
    confidence_sum: float
    loop_calls: int
    loop_cost_usd: float


def incident_totals(by: Literal["kind", "tool", "model"]) -> list[IncidentTotals]:
    """Sum up every project's incidents, without demo sessions, for metrics.

    Returns
    -------
    list of IncidentTotals
        Per project at most `MAX_LABEL_VALUES` names, those with the most incidents, and `other`. One query.
    """
    rows = (
        Incident.objects.filter(is_demo=False)
        .values_list("project__slug", by)
        .annotate(
            number=Count("pk"), left=Count("pk", filter=RECOVERED & Q(ended_at__isnull=False)), reacted=Count("pk", filter=REACTED & Q(ended_at__isnull=False)),
            sure=Sum("confidence"), calls=Sum("counted_calls", filter=IS_LOOP), cost=Sum("cost_usd", filter=IS_LOOP),
        )
        .order_by("project__slug", "-number", by)
    )  # fmt: skip
    places: dict[str, int] = defaultdict(int)
    sums: dict[tuple[str, str], list[float]] = {}
    for project, name, *values in rows:
        places[project] += 1
        shown = (name or "unknown") if places[project] <= MAX_LABEL_VALUES else "other"
        own = sums.setdefault((project, shown), [0] * len(values))
        for index, value in enumerate(values):
            own[index] += float(value or 0)
    return [
        IncidentTotals(project, name, int(a), int(b), int(c - b), d, int(e), f)
        for (project, name), (a, b, c, d, e, f) in sums.items()
    ]
