"""Statistics of detection: calls from the hourly counts, findings from the incidents.

Rows of both are merged by the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from django.db import connection
from django.db.models import Avg, Count, F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Trunc

from detection.models import CallCount, CountingCursor, Incident, JudgeCall, JudgeLabel

By = Literal["hour", "day", "kind", "tool", "model", "backend"]
MAX_ROWS = 1000
RUNGS = ("warn", "chance", "block", "ask", "judge", "stop")


@dataclass(slots=True)
class Numbers:
    """The numbers of one row.

    Attributes
    ----------
    checks, warned, blocked
        Calls that were looked at, and what they were answered. None for rows that calls have no share in (a detector).
    cost_usd
        Of all calls; `loop_cost_usd` of those inside loops, as far as the evidence reaches.
    incidents, loops
        A loop that several detectors find is one loop and several incidents.
    """

    checks: int | None = None
    warned: int | None = None
    blocked: int | None = None
    token_count: int | None = None
    cost_usd: float | None = None
    incidents: int = 0
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

    @property
    def precision(self) -> float | None:
        """Share of true loops among the labelled incidents; None without labels."""
        labelled = self.true_loops + self.false_alarms
        return self.true_loops / labelled if labelled else None

    @property
    def recovery(self) -> float | None:
        """Share of ended loops that the agent left by itself; None when none has ended."""
        ended = self.recovered + self.not_recovered
        return self.recovered / ended if ended else None

    @property
    def saved_cost_usd_estimate(self) -> float | None:
        """What the blocked calls would have cost at the average price of a call: an estimate."""
        if not self.checks or self.blocked is None or self.cost_usd is None:
            return None
        return self.blocked * self.cost_usd / self.checks


@dataclass(frozen=True, slots=True)
class Recovery:
    """What agents did after one rung of the ladder."""

    rung: str
    recovered: int
    went_on: int
    stopped: int

    @property
    def share(self) -> float | None:
        """Share of reactions after which the agent changed course."""
        total = self.recovered + self.went_on + self.stopped
        return self.recovered / total if total else None


@dataclass(frozen=True, slots=True)
class JudgeShare:
    """Consultations of the judge by outcome (see `JudgeOutcome`); `right` and `wrong` are those that people labelled so."""

    outcome: str
    count: int
    average_latency_ms: float
    token_count: int
    cost_usd: float
    right: int = 0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One group: its name (a time, a tool …) and its numbers."""

    key: str
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Statistics:
    """An answer: the whole, the groups, and how fresh the calls are."""

    start: datetime
    end: datetime
    total: Numbers
    rows: tuple[Row, ...] = ()
    recovery: tuple[Recovery, ...] = ()
    judge: tuple[JudgeShare, ...] = ()
    counted_at: datetime | None = None
    is_cut: bool = field(default=False)


def statistics(
    project_id: int, start: datetime, end: datetime, by: By | None = None, *, demo: bool = True
) -> Statistics:
    """Count what happened between two moments.

    Parameters
    ----------
    start, end
        Half open. Calls are counted by whole hours that begin in the span, incidents by when they were opened.
    by
        What to group by; None for the totals only.
    demo
        Whether the demo's sessions count.

    Returns
    -------
    Statistics
        At most 1,000 rows, see `groups`. Reads the hourly rows and the incidents of the span, no event.
    """
    calls, found = _counted(project_id, start, end, demo=demo)
    total = _merged(
        [("", calls.aggregate(**_CALL_SUMS))], [("", found.aggregate(**_INCIDENT_SUMS))], has_calls=True
    )[""]
    rows, is_cut = groups(project_id, start, end, by, demo=demo) if by else ((), False)
    counted_at = CountingCursor.objects.values_list("counted_at", flat=True).first()
    return Statistics(
        start, end, total, rows, _recovery(found), _judge(project_id, start, end), counted_at, is_cut
    )


def groups(
    project_id: int, start: datetime, end: datetime, by: By, *, demo: bool = True
) -> tuple[tuple[Row, ...], bool]:
    """Count like `statistics`, the groups alone: at a third of its cost where the rest is not needed.

    Returns
    -------
    tuple
        At most 1,000 rows: the newest for hours and days, else those with the most incidents, then calls; and whether there
        were more.
    """
    calls, found = _counted(project_id, start, end, demo=demo)
    call_by, incident_by = _grouping(by)
    merged = _merged(
        _grouped(calls, call_by, _CALL_SUMS) if call_by else (),
        _grouped(found, incident_by, _INCIDENT_SUMS),
        has_calls=bool(call_by),
    )
    rows = [Row(key, numbers) for key, numbers in merged.items()]
    if by in ("hour", "day"):
        rows.sort(key=lambda row: row.key)
        shown = rows[-MAX_ROWS:]
    else:
        rows.sort(key=lambda row: (-row.numbers.incidents, -(row.numbers.checks or 0), row.key))
        shown = rows[:MAX_ROWS]
    return tuple(shown), len(rows) > MAX_ROWS


def _counted(
    project_id: int, start: datetime, end: datetime, *, demo: bool
) -> tuple[QuerySet[CallCount], QuerySet[Incident]]:
    calls = CallCount.objects.filter(project_id=project_id, hour__gte=start, hour__lt=end)
    # An incident is never seen last before it was opened: the first condition uses the index, the second is what is meant.
    found = Incident.objects.filter(
        project_id=project_id, last_seen_at__gte=start, opened_at__gte=start, opened_at__lt=end
    )
    if not demo:
        calls, found = calls.filter(is_demo=False), found.filter(is_demo=False)
    return calls, found


def _judge(project_id: int, start: datetime, end: datetime) -> tuple[JudgeShare, ...]:
    rows = (
        JudgeCall.objects.filter(project_id=project_id, at__gte=start, at__lt=end)
        .order_by()
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


def _grouping(by: By) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what calls and incidents are grouped by; calls know no detector."""
    if by in ("hour", "day"):
        return (Trunc("hour", by, tzinfo=UTC),), (Trunc("opened_at", by, tzinfo=UTC),)
    if by == "model":
        return (F("backend"), F("model")), (F("backend"), F("model"))
    if by in ("tool", "backend"):
        return (F(by),), (F(by),)
    return (), (F("kind"),)


def _key(parts: Iterable[Any]) -> str:
    return "/".join(
        part.isoformat().replace("+00:00", "Z") if isinstance(part, datetime) else str(part) for part in parts
    )


_CALL_SUMS = {
    "sum_checks": Coalesce(Sum("checks"), 0),
    "sum_warned": Coalesce(Sum("warned"), 0),
    "sum_blocked": Coalesce(Sum("blocked"), 0),
    "sum_tokens": Coalesce(Sum("token_count"), 0),
    "sum_cost": Sum("cost_usd"),
}
_INCIDENT_SUMS = {
    "all_incidents": Count("pk"),
    "all_loops": Count("group_id", distinct=True),
    "sum_findings": Coalesce(Sum("detections"), 0),
    "true_loops": Count("pk", filter=Q(label="true_loop")),
    "false_alarms": Count("pk", filter=Q(label="false_alarm")),
    "mean_confidence": Avg("confidence"),
    "count_recovered": Count("pk", filter=Q(ended_at__isnull=False, recovered=True)),
    "count_not_recovered": Count("pk", filter=Q(ended_at__isnull=False, recovered=False)),
    "sum_loop_calls": Coalesce(Sum("unshared_calls"), 0),
    "sum_loop_blocked": Coalesce(Sum("calls_blocked"), 0),
    "sum_loop_cost": Sum("unshared_cost_usd"),
}


def _grouped(
    rows: QuerySet[Any], by: tuple[Any, ...], sums: dict[str, Any]
) -> Iterable[tuple[str, dict[str, Any]]]:
    names = tuple(f"by_{number}" for number in range(len(by)))
    for row in rows.order_by().values(**dict(zip(names, by, strict=True))).annotate(**sums):
        yield _key(row[name] for name in names), row


def _merged(
    calls: Iterable[tuple[str, dict[str, Any]]],
    found: Iterable[tuple[str, dict[str, Any]]],
    *,
    has_calls: bool,
) -> dict[str, Numbers]:
    merged: dict[str, Numbers] = {}

    def numbers(key: str) -> Numbers:
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
        one.incidents, one.loops, one.findings = row["all_incidents"], row["all_loops"], row["sum_findings"]
        one.true_loops, one.false_alarms = row["true_loops"], row["false_alarms"]
        one.average_confidence = row["mean_confidence"]
        one.recovered, one.not_recovered = row["count_recovered"], row["count_not_recovered"]
        one.loop_calls, one.loop_calls_blocked = row["sum_loop_calls"], row["sum_loop_blocked"]
        one.loop_cost_usd = float(row["sum_loop_cost"] or 0)
    return merged


def _recovery(rows: QuerySet[Incident]) -> tuple[Recovery, ...]:
    """What agents did after each reaction, as counted in the incidents."""
    sql, parameters = rows.order_by().values("evidence").query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT rung.key, outcome.key, sum(outcome.value::int) FROM ("  # noqa: S608  (our own statement)
            + sql
            + ") AS rows, jsonb_each(rows.evidence->'reactions') AS rung, jsonb_each_text(rung.value) AS outcome"
            " WHERE jsonb_typeof(rows.evidence->'reactions') = 'object' GROUP BY 1, 2",
            parameters,
        )
        counts: dict[str, dict[str, int]] = defaultdict(dict)
        for rung, outcome, count in cursor.fetchall():
            counts[rung][outcome] = count
    return tuple(
        Recovery(rung, *(counts[rung].get(name, 0) for name in ("recovered", "went_on", "stopped")))
        for rung in sorted(counts, key=lambda rung: RUNGS.index(rung) if rung in RUNGS else len(RUNGS))
    )


def totals_by_project() -> list[tuple[str, int, int, int, float]]:
    """Return what every project's calls came to since counting began, without the demo's: for metrics."""
    rows = (
        CallCount.objects.filter(is_demo=False)
        .order_by("project__slug")
        .values_list("project__slug")
        .annotate(Sum("checks"), Sum("warned"), Sum("blocked"), Sum("cost_usd"))
    )
    return [(slug, checks, warned, blocked, float(cost or 0)) for slug, checks, warned, blocked, cost in rows]


def incidents_by_kind() -> list[tuple[str, str, str, int]]:
    """Count every project's incidents by detector and label, without the demo's: for metrics."""
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
    """Sum up every project's incidents, without the demo's: for metrics.

    Returns
    -------
    list of IncidentTotals
        Per project at most `MAX_LABEL_VALUES` names, those with the most incidents, and `other`. One query.
    """
    rows = (
        Incident.objects.filter(is_demo=False)
        .values_list("project__slug", by)
        .annotate(
            number=Count("pk"), left=Count("pk", filter=Q(recovered=True)), stayed=Count("pk", filter=Q(recovered=False)),
            sure=Sum("confidence"), calls=Sum("unshared_calls"), cost=Sum("unshared_cost_usd"),
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
        IncidentTotals(project, name, int(a), int(b), int(c), d, int(e), f)
        for (project, name), (a, b, c, d, e, f) in sums.items()
    ]
