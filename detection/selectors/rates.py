"""How often agents loop and what calls cost, per 1,000 calls, with intervals that show how sure this is.

The unit is the session: those whose last event is in the period, with all their calls and loops. So calls and loops are
of the same sessions, however long these took, and figures of agents, models, tools and integrations have one base.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple

from django.db.models import Count, F, FloatField, Q, QuerySet, Sum, Value
from django.db.models.functions import Cast

from detection.engine.detectors import RUN_LIMITS
from detection.models import Incident, Session, SessionTool
from detection.models.incidents import IS_LOOP
from detection.selectors.row_fields import Shown

RateBy = Literal["total", "agent", "model", "tool", "detector", "integration", "project"]
_Z: Final = 1.959964
"""The quantile of the normal distribution that leaves 2.5 % on each side."""
_PER: Final = 1_000
_OF_SESSIONS: Final = {
    "agent": "agent",
    "model": "model",
    "integration": "integration",
    "project": "project__slug",
}
_OF_LOOPS: Final = {
    "agent": "session__agent",
    "model": "session__model",
    "integration": "session__integration",
    "project": "project__slug",
    "tool": "tool",
    "detector": "kind",
}


class Interval(NamedTuple):
    """An interval that contains the true value in 95 of 100 such periods."""

    low: Annotated[float, Shown("Lower end.")]
    high: Annotated[float, Shown("Upper end.")]


@dataclass(slots=True)
class RateNumbers:
    """Calls, loops and costs of some sessions."""

    # fmt: off
    sessions: Annotated[int, Shown("Sessions whose last event is in the period.")] = 0
    calls: Annotated[int, Shown("All calls of these sessions; of a tool, those of the tool.")] = 0
    loops: Annotated[int, Shown(
        "Loops in these sessions, without spent limits and those labelled as no loop; of a detector, those it found.",
    )] = 0
    loops_per_1000_calls: Annotated[float | None, Shown("Null without calls.")] = None
    loops_interval: Annotated[Interval | None, Shown("95 % interval (Wilson) of the loops per 1,000 calls.")] = None
    cost_usd: Annotated[float | None, Shown("Cost of the calls. Null for tools and detectors.")] = None
    cost_per_1000_calls: Annotated[float | None, Shown(
        "In US dollars. Null without calls, and for tools and detectors.",
    )] = None
    cost_interval: Annotated[Interval | None, Shown(
        "95 % interval of the cost per 1,000 calls, by how it varies between sessions. Null for fewer than two.",
    )] = None
    loop_cost_usd: Annotated[float, Shown("Cost of the calls in loops.")] = 0.0
    # fmt: on


@dataclass(slots=True)
class RateRow(RateNumbers):
    """A group, and what it was in the period of the same length before."""

    # fmt: off
    key: Annotated[str, Shown("Agent, model, tool, detector, integration or project.")] = ""
    before: Annotated[RateNumbers, Shown("The same numbers of the period before.")] = field(default_factory=RateNumbers)
    # fmt: on


@dataclass(frozen=True, slots=True)
class RateComparison:
    """Two groups, and by which factor the first one loops more often."""

    # fmt: off
    first: Annotated[RateRow, Shown("The first group.")]
    second: Annotated[RateRow, Shown("The second group.")]
    ratio: Annotated[float | None, Shown(
        "Loops per call of the first group, divided by those of the second. Null if either has none.",
    )]
    ratio_interval: Annotated[Interval | None, Shown("95 % interval of the ratio. Null if either has no calls.")]
    differs: Annotated[bool, Shown("Whether the interval of the ratio does not contain 1.")]
    tools: Annotated[int | None, Shown(
        "How many tools both used, if only their calls and loops are counted. Null for all calls.",
    )]
    words: Annotated[str, Shown("The result in a sentence.")]
    # fmt: on


def wilson(found: int, number: int) -> Interval | None:
    """Return the interval of a share after Wilson, 0 to 1; None of nothing. Good for small numbers and shares, too."""
    if number <= 0:
        return None
    share = min(found, number) / number
    middle = share + _Z * _Z / (2 * number)
    half = _Z * math.sqrt(share * (1 - share) / number + _Z * _Z / (4 * number * number))
    whole = 1 + _Z * _Z / number
    return Interval(max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole))


def ratio_interval(found: int, number: int, other_found: int, other_number: int) -> Interval | None:
    """Return the interval of the ratio of two shares, by its logarithm; None if either is of nothing.

    A half is added to the counts if one of them is 0, which has no logarithm.
    """
    if number <= 0 or other_number <= 0:
        return None
    more = 0.0 if found and other_found else 0.5
    a, b = min(found, number) + more, min(other_found, other_number) + more
    n, m = number + more, other_number + more
    middle = math.log((a / n) / (b / m))
    half = _Z * math.sqrt(max(0.0, 1 / a - 1 / n + 1 / b - 1 / m))
    return Interval(math.exp(middle - half), math.exp(middle + half))


def rates(
    project_ids: Collection[int],
    start: datetime,
    end: datetime,
    by: RateBy = "total",
    *,
    with_demo: bool = False,
    only: Q = Q(),  # noqa: B008 - conditions are never changed in place
) -> list[RateRow]:
    """Return the numbers of a period and of the one before, most loops first.

    Parameters
    ----------
    project_ids
        Only projects that the caller may see.
    by
        An integration is how the first event of a session came.
    only
        Condition of the sessions.
    """
    rows: dict[str, RateRow] = {}
    for key, numbers in _numbers(
        project_ids, _sessions(project_ids, start, end, with_demo, only), by
    ).items():
        shown = {name: getattr(numbers, name) for name in RateNumbers.__dataclass_fields__}
        rows[key] = RateRow(**shown, key=key)
    earlier = _sessions(project_ids, start - (end - start), start, with_demo, only)
    for key, numbers in _numbers(project_ids, earlier, by).items():
        row = rows.setdefault(key, RateRow(key=key))
        row.before = numbers
    return sorted(rows.values(), key=lambda row: (-row.loops, -row.calls, row.key))


def compare_rates(
    project_ids: Collection[int],
    start: datetime,
    end: datetime,
    by: RateBy,
    first: str,
    second: str,
    *,
    with_demo: bool = False,
    on_shared_tools: bool = False,
) -> RateComparison:
    """Compare the loops per call of two groups of a grouping; one without calls has zeros.

    Parameters
    ----------
    on_shared_tools
        Count only calls and loops of the tools that both used; for agents, models and integrations.
    """
    tools = None
    if on_shared_tools:
        sessions = _sessions(project_ids, start, end, with_demo, Q())
        rows, tools = _on_shared_tools(project_ids, sessions, by, first, second)
    else:
        rows = {row.key: row for row in rates(project_ids, start, end, by, with_demo=with_demo)}
    one, two = rows.get(first, RateRow(key=first)), rows.get(second, RateRow(key=second))
    interval = ratio_interval(one.loops, one.calls, two.loops, two.calls)
    differs = interval is not None and not interval.low <= 1 <= interval.high
    ratio = None
    if one.loops and two.loops and one.calls and two.calls:
        ratio = (one.loops / one.calls) / (two.loops / two.calls)
    fewest = min(one.calls, two.calls)
    if interval is None or not differs:
        words = f"No difference can be seen in {fewest:,} call{'' if fewest == 1 else 's'}."
    else:
        # The one that loops more often is the subject: "half as often" is harder to read than "twice as often".
        more, less, low, high, times = first, second, interval.low, interval.high, ratio
        if interval.high < 1:
            more, less, low = second, first, 1 / interval.high
            high, times = (1 / value if value else 0 for value in (interval.low, ratio))
        middle = f"about {_two_digits(times)} times as often as" if times else "more often than"
        span = f"{_two_digits(low)} to {_two_digits(high)}" if high else f"at least {_two_digits(low)}"
        words = f"{more} loops {middle} {less}, {span} times."
    return RateComparison(one, two, ratio, interval, differs, tools, words)


def _two_digits(value: float) -> str:
    """Return a factor with two digits that count: 0.0032, 1.6, 130."""
    return f"{float(f'{value:.2g}'):,g}"


def _on_shared_tools(
    project_ids: Collection[int], sessions: QuerySet[Session], by: RateBy, first: str, second: str
) -> tuple[dict[str, RateRow], int]:
    """Return the numbers of two groups on the tools that both used, and how many tools these are; three queries."""
    column, names = _OF_SESSIONS[by], (first, second)
    of_two = sessions.filter(**{f"{column}__in": names})
    called = SessionTool.objects.filter(
        project_id__in=project_ids, session__in=of_two, calls__gt=0
    ).order_by()
    by_tool: dict[str, dict[str, RateNumbers]] = defaultdict(dict)
    rows = called.values_list("tool", f"session__{column}").annotate(Count("session_id"), Sum("calls"))
    for tool, key, count, calls in rows:
        by_tool[tool][key] = RateNumbers(count, int(calls))
    shared = {tool: of for tool, of in by_tool.items() if len(of) == len({*names})}
    found = {
        name: RateRow(key=name, calls=sum(of[name].calls for of in shared.values())) for name in {*names}
    }
    loops = _loops(project_ids, of_two).filter(tool__in=[*shared]).order_by()
    for key, count, cost in loops.values_list(_OF_LOOPS[by]).annotate(Count("pk"), Sum("cost_usd")):
        found[key].loops, found[key].loop_cost_usd = count, float(cost or 0)
    in_both = called.filter(tool__in=[*shared]).values_list(f"session__{column}")
    for key, count in in_both.annotate(Count("session_id", distinct=True)):
        found[key].sessions = count
    for numbers in found.values():
        _set_rate(numbers)
    return found, len(shared)


def _sessions(
    project_ids: Collection[int], start: datetime, end: datetime, with_demo: bool, only: Q
) -> QuerySet[Session]:
    sessions = Session.objects.filter(
        only, project_id__in=project_ids, last_event_at__gte=start, last_event_at__lt=end
    )
    return sessions if with_demo else sessions.filter(is_demo=False)


def _loops(project_ids: Collection[int], sessions: QuerySet[Session]) -> QuerySet[Incident]:
    loops = Incident.objects.filter(IS_LOOP, project_id__in=project_ids, session__in=sessions)
    return loops.exclude(kind__in=RUN_LIMITS)


def _set_rate(numbers: RateNumbers) -> None:
    share = wilson(numbers.loops, numbers.calls)
    if share is not None:
        numbers.loops_per_1000_calls = _PER * numbers.loops / numbers.calls
        numbers.loops_interval = Interval(_PER * share.low, _PER * share.high)


def _numbers(project_ids: Collection[int], sessions: QuerySet[Session], by: RateBy) -> dict[str, RateNumbers]:
    found = _of_tools(project_ids, sessions) if by == "tool" else _of_sessions(sessions, by)
    loops = _loops(project_ids, sessions)
    total: RateNumbers | None = None
    if by == "detector":
        # Every detector sees every call.
        total = found.pop("")
    column = F(_OF_LOOPS[by]) if by in _OF_LOOPS else Value("")
    counted = loops.order_by().values_list(column).annotate(Count("pk"), Sum("cost_usd"))
    for key, count, cost in counted:
        none = RateNumbers(total.sessions, total.calls) if total else RateNumbers()
        numbers = found.setdefault(key, none)
        numbers.loops, numbers.loop_cost_usd = count, float(cost or 0)
    for numbers in found.values():
        _set_rate(numbers)
    return found


class _Sums(NamedTuple):
    """Sums over sessions; of no session, all but their number are null."""

    sessions: int
    calls: int | None
    cost: float | None
    squared_costs: float | None
    products: float | None
    squared_calls: float | None


_COST, _CALLS = Cast("cost_usd", FloatField()), Cast("call_count", FloatField())
_SUMS: Final = (
    Count("pk"),
    Sum("call_count"),
    Sum(_COST),
    Sum(_COST * _COST),
    Sum(_COST * _CALLS),
    Sum(_CALLS * _CALLS),
)
_SUM_NAMES: Final = tuple(f"sum_{name}" for name in _Sums._fields)


def _of_sessions(sessions: QuerySet[Session], by: RateBy) -> dict[str, RateNumbers]:
    """Return calls and costs of sessions by one of their columns, or of all of them."""
    column = F(_OF_SESSIONS[by]) if by in _OF_SESSIONS else Value("")
    rows = sessions.order_by().values_list(column).annotate(**dict(zip(_SUM_NAMES, _SUMS, strict=True)))
    found = {key: _with_cost(_Sums(*sums)) for key, *sums in rows}
    return found if by in _OF_SESSIONS else found or {"": RateNumbers(cost_usd=0.0)}


def _with_cost(sums: _Sums) -> RateNumbers:
    numbers = RateNumbers(sums.sessions, int(sums.calls or 0), cost_usd=sums.cost or 0.0)
    if numbers.calls:
        each = (sums.cost or 0.0) / numbers.calls
        numbers.cost_per_1000_calls = _PER * each
        if sums.sessions > 1:
            # Sessions are the sample: calls of one session cost alike.
            spread = (sums.squared_costs or 0.0) - 2 * each * (sums.products or 0.0)
            spread += each * each * (sums.squared_calls or 0.0)
            error = math.sqrt(max(0.0, spread) * sums.sessions / (sums.sessions - 1)) / numbers.calls
            numbers.cost_interval = Interval(_PER * max(0.0, each - _Z * error), _PER * (each + _Z * error))
    return numbers


def _of_tools(project_ids: Collection[int], sessions: QuerySet[Session]) -> dict[str, RateNumbers]:
    rows = SessionTool.objects.filter(project_id__in=project_ids, session__in=sessions).order_by()
    counted = rows.values_list("tool").annotate(Count("session_id"), Sum("calls"))
    return {tool: RateNumbers(number, int(calls or 0)) for tool, number, calls in counted}
