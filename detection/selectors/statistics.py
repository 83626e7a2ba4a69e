"""Statistics of detection: calls from the hourly counts, findings from the incidents.

Rows of both are merged by the group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, Final, Literal

import orjson
from django.db.models import (
    Avg,
    Case,
    Count,
    DateTimeField,
    ExpressionWrapper,
    F,
    FloatField,
    Func,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Greatest, NullIf, Trunc
from django.utils import timezone

from detection.engine.detectors import detector_for
from detection.filtering.time_ranges import ALL_TIME
from detection.models import CallCount, CountingCursor, Incident, JudgeCall, JudgeLabel, JudgeOutcome
from detection.models.incidents import IS_LOOP, IncidentLabel, ReactionOutcome
from detection.selectors.filters import ListQuery
from detection.selectors.grouped_sums import Group, added, grouped_sums, one_if
from detection.selectors.lists import CALL_COUNTS, OUTCOMES, RUNGS
from detection.selectors.pages import Order
from detection.selectors.row_fields import Shown, document_of

By = Literal["hour", "day", "kind", "tool", "agent", "model", "backend"]
Step = Literal["minutes", "hour", "day", "week"]
"""Buckets of a chart: five minutes, or as they are called."""
ReactionsBy = Literal["kind", "tool", "agent", "model"]
MAX_ROWS = 1000


@dataclass(slots=True)
class Numbers:
    """The numbers of one row; those of calls are None for rows that calls cannot be counted for (a detector).

    Attributes
    ----------
    loop_calls, loop_cost_usd
        Sums of `counted_calls` and `cost_usd` of the incidents that nobody labelled "not a loop", see `IS_LOOP`.
    saved_cost_usd_estimate
        Blocked calls of the same incidents as `loop_cost_usd`, each at the average cost of the calls that its incident
        counts. Calls outside these loops do not change it.
    """

    # fmt: off
    checks: Annotated[int | None, Shown("Evaluated calls.")] = None
    warned: Annotated[int | None, Shown("Calls with a warning.")] = None
    blocked: Annotated[int | None, Shown(
        "Calls that were blocked, held or stopped, without held and delayed calls that were allowed in the end, and "
        "without those that ran nevertheless.",
    )] = None
    token_count: Annotated[int | None, Shown("Tokens used.")] = None
    cost_usd: Annotated[float | None, Shown("Cost of all calls in US dollars.")] = None
    incidents: Annotated[int, Shown("Incidents.")] = 0
    blocked_incidents: Annotated[int, Shown("Incidents with blocked calls.")] = 0
    findings: Annotated[int, Shown("Detections, several per incident.")] = 0
    true_loops: Annotated[int, Shown("Incidents that people labelled as loops.")] = 0
    false_alarms: Annotated[int, Shown("Incidents that people labelled as false alarms.")] = 0
    false_stops: Annotated[int, Shown("Those among them with blocked calls.")] = 0
    average_confidence: Annotated[float | None, Shown("Average confidence of the incidents, 0 to 1.")] = None
    recovered: Annotated[int, Shown("Ended incidents with a reaction after which the agent recovered.")] = 0
    not_recovered: Annotated[
        int, Shown("The others with a reaction that ended or whose calls are blocked since a stop.")
    ] = 0
    loop_calls: Annotated[int, Shown("Counted calls of the incidents that nobody labelled false alarms.")] = 0
    loop_calls_blocked: Annotated[int, Shown(
        "Blocked calls of the incidents, without held calls that were allowed later and without those that ran.",
    )] = 0
    loop_cost_usd: Annotated[float, Shown(
        "Cost of the incidents that nobody labelled false alarms, in US dollars.",
    )] = 0.0
    saved_cost_usd_estimate: Annotated[float | None, Shown(
        "Blocked calls in loops, each at the average cost of the calls of its loop, in US dollars. Null if no such "
        "cost is known.",
    )] = None
    precision: Annotated[float | None, Shown("Share of loops among the labelled incidents.")] = None
    recovery: Annotated[float | None, Shown("Share of `recovered` among the two. Null if both are 0.")] = None
    # fmt: on

    @property
    def loops_found(self) -> int:
        """Incidents that nobody labelled "not a loop"."""
        return self.incidents - self.false_alarms


@dataclass(frozen=True, slots=True)
class AfterReaction:
    """What agents did after the reactions of one rung."""

    # fmt: off
    key: Annotated[str, Shown("What the reactions are grouped by; empty for all of them.")]
    rung: Annotated[str, Shown("Rung of the escalation ladder.")]
    changed: Annotated[int, Shown("The agent changed course: five calls without the loop, or a new result.")]
    went_on: Annotated[int, Shown("The agent continued the loop.")]
    asked: Annotated[int, Shown("A person wrote to the agent before its next call of the loop.")]
    ended: Annotated[int, Shown("The session ended, or its calls were blocked.")]
    share: Annotated[float | None, Shown("Share of the reactions after which the agent changed course.")]
    # fmt: on
    incidents: Mapping[str, int]
    """How many incidents have each of the outcomes."""


@dataclass(frozen=True, slots=True)
class JudgeShare:
    """How often the judge gave one outcome, and what that cost."""

    # fmt: off
    outcome: Annotated[str, Shown("Outcome of the consultation.", choices=JudgeOutcome)]
    count: Annotated[int, Shown("Number of consultations.")]
    average_latency_ms: Annotated[float, Shown("Average latency in milliseconds.")]
    token_count: Annotated[int, Shown("Tokens used.")]
    cost_usd: Annotated[float, Shown("Cost in US dollars.")]
    right: Annotated[int, Shown("Rulings that people labelled right.")] = 0
    wrong: Annotated[int, Shown("Rulings that people labelled wrong.")] = 0
    # fmt: on


@dataclass(frozen=True, slots=True)
class Row:
    """One group: its name (a time, a tool …) and its numbers."""

    key: str
    numbers: Numbers

    def as_document(self) -> dict[str, Any]:
        """Return the group as API and files show it."""
        return {"key": self.key, **document_of(self.numbers)}


@dataclass(frozen=True, slots=True)
class Statistics:
    """Totals, groups, and the time up to which calls are counted."""

    start: datetime
    end: datetime
    total: Numbers
    rows: tuple[Row, ...] = ()
    after_reactions: tuple[AfterReaction, ...] = ()
    judge: tuple[JudgeShare, ...] = ()
    counted_at: datetime | None = None
    is_cut: bool = field(default=False)
    false_alarms: tuple[tuple[str, int], ...] = ()
    """Incidents labelled "not a loop" by reason (see `LabelReason`), the most frequent first."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """Totals and groups.

    Attributes
    ----------
    rows
        All of them, in the order of the query; hours and days by time.
    alike
        Sums over the incidents that have label reason and reactions in common.
    """

    total: Numbers
    rows: list[Row]
    alike: list[Group]


def statistics(project_id: int, query: ListQuery, by: By | None = None) -> Statistics:
    """Count what happened in a time range.

    Parameters
    ----------
    query
        Of the list `STATISTICS`, with both ends of the range. Calls are counted by whole hours that begin in it,
        incidents by when they were opened. Terms that calls have no field for, such as an agent, yield no numbers of
        calls. Days are those of the query's time zone.
    by
        What to group by; None for the totals only.

    Returns
    -------
    Statistics
        At most 1,000 rows: the newest for hours and days, else the first in the order of the query, those with equal
        numbers by incidents, then calls. Reads the hourly rows of the range once, its incidents once, and no event.
    """
    found = grouped(project_id, query, by)
    start, end = ends_of(query)
    return Statistics(
        start,
        end,
        found.total,
        tuple(found.rows[-MAX_ROWS:] if by in ("hour", "day") else found.rows[:MAX_ROWS]),
        _after(found.alike),
        _judge(project_id, query),
        CountingCursor.objects.values_list("counted_at", flat=True).first(),
        len(found.rows) > MAX_ROWS,
        _false_alarms(found.alike),
    )


def grouped(project_id: int, query: ListQuery, by: By | None = None) -> Grouped:
    """Return the totals and groups of `statistics`; two queries."""
    calls, found = _counted(project_id, query)
    of_calls, of_incidents = (one.grouping(query.zone, by) for one in (_CALLS, _INCIDENTS))
    in_calls = {} if calls is None else grouped_sums(calls, of_calls or {"total": ()}, _CALL_NUMBERS)
    if of_calls and in_calls:
        in_calls["total"] = [added(in_calls["by"], _CALL_NUMBERS)]
    in_incidents = grouped_sums(found, {"alike": _ALIKE} | of_incidents, _INCIDENT_NUMBERS)
    alike = in_incidents["alike"]
    in_incidents["total"] = [added(alike, _INCIDENT_NUMBERS)]

    def rows(name: str) -> list[Row]:
        merged = _merged(in_calls.get(name), in_incidents.get(name, ()))
        return [Row(_key(values, query.zone), numbers) for values, numbers in merged.items()]

    (total,), of_groups = rows("total"), rows("by")
    by_time = by in ("hour", "day")
    ordered = (
        sorted(of_groups, key=lambda row: row.key) if by_time else ordered_rows(of_groups, query.order, by)
    )
    return Grouped(total.numbers, ordered, alike)


def over_time(
    project_id: int, query: ListQuery, by: By, step: Step, shift: timedelta = timedelta()
) -> dict[tuple[datetime, str], Numbers]:
    """Return the numbers of incidents in each bucket of a range, by group; one query.

    Parameters
    ----------
    query
        As of `statistics`; buckets are those of its time zone.
    shift
        Added to the times of incidents, so that those of an earlier period fall into the buckets of a later one.
    """
    found = Incident.objects.filter(query.condition(), project_id=project_id)
    at = ExpressionWrapper(F("opened_at") + Value(shift), DateTimeField())
    names = tuple(F(column) for column in _INCIDENTS.names[by])
    groups = grouped_sums(found, {"of": (_bucket(at, step, query.zone), *names)}, _INCIDENT_NUMBERS)["of"]
    merged = _merged(None, groups)
    return {(_moment(at, query.zone), _key(key, query.zone)): one for (at, *key), one in merged.items()}


def of_projects(
    project_ids: Collection[int], start: datetime, end: datetime, zone: tzinfo
) -> dict[tuple[datetime, int], Numbers]:
    """Return the numbers of the incidents of projects by day and project; one query, and none without projects."""
    if not project_ids:
        return {}
    found = Incident.objects.filter(project_id__in=project_ids, opened_at__gte=start, opened_at__lt=end)
    by_day = (Trunc("opened_at", "day", tzinfo=zone), F("project_id"))
    merged = _merged(None, grouped_sums(found, {"of": by_day}, _INCIDENT_NUMBERS)["of"])
    return {(_moment(at, zone), project_id): one for (at, project_id), one in merged.items()}


def _bucket(at: Any, step: Step, zone: tzinfo) -> Any:
    """Return the expression of the beginning of the bucket that a time is in."""
    if step != "minutes":
        return Trunc(at, step, tzinfo=zone)
    width, origin = Value(timedelta(minutes=5)), Value(datetime(2000, 1, 1, tzinfo=UTC))
    return Func(width, at, origin, function="date_bin", output_field=DateTimeField())


def ordered_rows(rows: list[Row], order: Order, by: By | None) -> list[Row]:
    """Return groups in an order; those without the number come last in both directions. Detectors have labels."""
    rows = sorted(rows, key=lambda row: (-row.numbers.incidents, -(row.numbers.checks or 0), row.key))
    column = order.key.column
    if column == "key":
        names = {row.key: detector_for(row.key).label if by == "kind" else row.key for row in rows}
        return sorted(rows, key=lambda row: names[row.key].lower(), reverse=order.is_descending)
    known = [row for row in rows if getattr(row.numbers, column) is not None]
    unknown = [row for row in rows if getattr(row.numbers, column) is None]
    return sorted(known, key=lambda row: getattr(row.numbers, column), reverse=order.is_descending) + unknown


def ends_of(query: ListQuery) -> tuple[datetime, datetime]:
    """Return both ends of the range of a query that has both."""
    start, end = query.range.start, query.range.end
    assert start is not None and end is not None  # noqa: PT018, S101 - promised by the caller
    return start, end


def _false_alarms(alike: Iterable[Group]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for group in alike:
        counts[group.values[0]] += group.sums["false_alarms"]
    return tuple(sorted(((+counts).items()), key=lambda row: (-row[1], row[0])))


def _counted(project_id: int, query: ListQuery) -> tuple[QuerySet[CallCount] | None, QuerySet[Incident]]:
    """Return the counts of calls and the incidents of a query; None for calls under terms without a field in them."""
    found = Incident.objects.filter(query.condition(), project_id=project_id)
    if not all(CALL_COUNTS.has(term.field) for term in query.terms):
        return None, found
    condition = replace(query, spec=CALL_COUNTS).condition()
    return CallCount.objects.filter(condition, project_id=project_id), found


def _judge(project_id: int, query: ListQuery) -> tuple[JudgeShare, ...]:
    """Count the consultations of the range; with terms, those about matching incidents, whenever they were opened."""
    start, end = ends_of(query)
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


def judged_incidents(project_id: int, query: ListQuery) -> dict[str, int]:
    """Count the incidents of a query of `STATISTICS` by the terms `judge` that select them; one query."""
    found = Incident.objects.filter(query.condition(), project_id=project_id)
    counts: dict[str, int] = {}
    consulted = (
        JudgeCall.objects.filter(project_id=project_id, incident__in=found).order_by().values_list("outcome")
    )
    for outcome, count, right, wrong in consulted.annotate(
        Count("incident", distinct=True),
        right=Count("incident", distinct=True, filter=Q(label=JudgeLabel.RIGHT)),
        wrong=Count("incident", distinct=True, filter=Q(label=JudgeLabel.WRONG)),
    ):
        counts |= {
            f"judge:{outcome}": count,
            f"judge:{outcome}_right": right,
            f"judge:{outcome}_wrong": wrong,
        }
    return counts


@dataclass(frozen=True, slots=True)
class _Columns:
    """What calls or incidents can be grouped by."""

    time: str
    names: Mapping[str, tuple[str, ...]]

    def grouping(self, zone: tzinfo, by: By | None) -> dict[str, tuple[Any, ...]]:
        """Return the expressions to group by, under the name `by`; nothing if there are none."""
        if by in ("hour", "day"):
            return {"by": (Trunc(self.time, by, tzinfo=zone),)}
        return {"by": tuple(map(F, self.names[by]))} if by is not None and by in self.names else {}


_NAMES = {"tool": ("tool",), "model": ("model",), "backend": ("backend",)}
_CALLS: Final = _Columns("hour", _NAMES)
_INCIDENTS: Final = _Columns("opened_at", _NAMES | {"kind": ("kind",), "agent": ("agent",)})
_CALL_NUMBERS: Final = {name: F(name) for name in ("checks", "warned", "token_count", "cost_usd")} | {
    "blocked": F("blocked") - F("allowed_later")
}
_BLOCKED_IN_LOOP = IS_LOOP & Q(calls_blocked__gt=0)
SAVED: Final = Case(
    When(
        _BLOCKED_IN_LOOP & Q(counted_calls__gt=0),
        then=F("calls_blocked")
        * NullIf(Cast("cost_usd", FloatField()), 0.0)
        / Greatest("counted_calls", "calls_blocked"),
    ),
    output_field=FloatField(),
)
_ALIKE: Final = (F("label_reason"), F("reactions"))
"""What incidents that are counted alike have in common; they are few groups."""


_INCIDENT_NUMBERS: Final = {
    "incidents": Value(1),
    "blocked_incidents": one_if(Q(calls_blocked__gt=0)),
    "findings": F("detections"),
    "true_loops": one_if(Q(label=IncidentLabel.TRUE_LOOP)),
    "false_alarms": one_if(Q(label=IncidentLabel.FALSE_ALARM)),
    "false_stops": one_if(Q(label=IncidentLabel.FALSE_ALARM) & Q(calls_blocked__gt=0)),
    "confidence": F("confidence"),
    **{name: one_if(condition) for name, condition in OUTCOMES.items()},
    "loop_calls": Case(When(IS_LOOP, then=F("counted_calls"))),
    "loop_calls_blocked": F("calls_blocked"),
    "loop_cost_usd": Case(When(IS_LOOP, then=F("cost_usd"))),
    "saved": SAVED,
}


def _moment(value: datetime, zone: tzinfo) -> datetime:
    """Return the beginning of a bucket, which the database writes in the time of the zone or with its own."""
    return (timezone.make_aware(value, zone) if timezone.is_naive(value) else value).astimezone(UTC)


def _key(values: Iterable[Any], zone: tzinfo) -> str:
    return "/".join(
        _moment(value, zone).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
        for value in values
    )


def _merged(calls: Iterable[Group] | None, incidents: Iterable[Group]) -> dict[tuple[Any, ...], Numbers]:
    """Return the numbers of each group; those of calls are None without `calls`."""
    none = Numbers() if calls is None else Numbers(checks=0, warned=0, blocked=0, token_count=0, cost_usd=0.0)
    merged: dict[tuple[Any, ...], Numbers] = {}
    for group in calls or ():
        sums = group.sums
        merged[group.values] = Numbers(
            checks=int(sums["checks"] or 0),
            warned=int(sums["warned"] or 0),
            blocked=int(sums["blocked"] or 0),
            token_count=int(sums["token_count"] or 0),
            cost_usd=float(sums["cost_usd"] or 0),
        )
    for group in incidents:
        one = merged.setdefault(group.values, replace(none))
        sums = {name: number or 0 for name, number in group.sums.items()}
        one.incidents, one.blocked_incidents = sums["incidents"], sums["blocked_incidents"]
        one.findings = sums["findings"]
        one.true_loops, one.false_alarms = sums["true_loops"], sums["false_alarms"]
        one.false_stops = sums["false_stops"]
        one.average_confidence = sums["confidence"] / one.incidents if one.incidents else None
        one.recovered, one.not_recovered = sums["recovered"], sums["not_recovered"]
        one.loop_calls, one.loop_calls_blocked = sums["loop_calls"], sums["loop_calls_blocked"]
        one.loop_cost_usd = float(sums["loop_cost_usd"])
        one.precision = _share(one.true_loops, one.false_alarms)
        one.recovery = _share(one.recovered, one.not_recovered)
        one.saved_cost_usd_estimate = group.sums["saved"]
    return merged


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def after_reactions(project_id: int, query: ListQuery, by: ReactionsBy | None = None) -> list[AfterReaction]:
    """Return what agents did after each reaction, for all of them or in groups; one query.

    Parameters
    ----------
    query
        Of the list `STATISTICS`.

    Returns
    -------
    list of AfterReaction
        At most `MAX_ROWS`: groups by their name, in each the rungs in the order of the ladder.
    """
    column = F(by) if by else Value("")
    found = Incident.objects.filter(query.condition(), project_id=project_id).exclude(reactions=None)
    groups = grouped_sums(found, {"of": (column, F("reactions"))}, {"incidents": Value(1)})["of"]
    by_key: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_key[str(group.values[0])].append(group)
    return [row for key in sorted(by_key) for row in _after(by_key[key], key)][:MAX_ROWS]


def _after(alike: Iterable[Group], key: str = "") -> tuple[AfterReaction, ...]:
    """Return what agents did after each reaction, as counted in the incidents."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for group in alike:
        reactions = orjson.loads(group.values[1] or "null")
        for rung, outcomes in reactions.items() if isinstance(reactions, dict) else ():
            for outcome, count in outcomes.items():
                counts[rung][outcome] += count * group.sums["incidents"]
                found[rung][outcome] += group.sums["incidents"] if count else 0
    return tuple(
        AfterReaction(
            key=key,
            rung=rung,
            **{outcome: counts[rung][outcome] for outcome in ReactionOutcome.values},
            share=_share(counts[rung]["changed"], counts[rung].total() - counts[rung]["changed"]),
            incidents=found[rung],
        )
        for rung in sorted(counts, key=lambda rung: RUNGS.index(rung) if rung in RUNGS else len(RUNGS))
    )
