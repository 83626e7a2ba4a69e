"""Compare: how often two agents, models or tools loop, and whether the difference is more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from detection.console.access import ProjectRequest
from detection.console.formatting import money, visible
from detection.console.insights.chart import nice_top
from detection.console.policies.change_here import CallNames, change_url
from detection.engine.scopes import Scope
from detection.models import Session
from detection.selectors.insights import RATES_BY, Insights
from detection.selectors.rates import RateComparison, RateRow, compare_rates
from detection.selectors.statistics import By

LIMIT: Final = "max_repeats"
"""The setting that *Set a limit for…* opens."""
FEW_SHARED: Final = 0.5
"""Below this share of the calls of one of them, those on shared tools say little of it; a judgement."""


@dataclass(frozen=True, slots=True)
class Whisker:
    """A rate as a dot with its interval, on an axis from 0 that both share."""

    key: str
    color: int
    x: str
    width: str
    dot: str
    words: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the page shows.

    Attributes
    ----------
    names
        What can be chosen.
    on
        ``all`` calls, or those of ``shared`` tools; empty where groups share no tools.
    more_often
        The one that a limit is offered for if they differ: that loops more often.
    """

    found: RateComparison
    names: list[str]
    on: str
    whiskers: list[Whisker]
    cost_words: str
    more_often: str
    limit_url: str


def of_page(
    request: ProjectRequest, found: Insights, by: By, start: datetime, end: datetime
) -> Comparison | None:
    """Return the comparison that the address asks for, at first of the two groups with the most calls."""
    if by not in ("agent", "model", "tool"):
        return None
    calls = {row.key: row.rate.calls for row in found.rows if row.rate and row.rate.calls}
    names = sorted(calls, key=lambda key: (-calls[key], key))
    if len(names) < 2:
        return None
    first, second = request.GET.get("first", ""), request.GET.get("second", "")
    first = first if first in calls else next(one for one in names if one != second)
    second = second if second in calls else next(one for one in names if one != first)
    compare = partial(
        compare_rates, [request.project.pk], start, end, RATES_BY[by], first, second, with_demo=True
    )
    asked = request.GET.get("on", "")
    on = "" if by == "tool" else asked if asked in ("all", "shared") else "shared"
    compared = compare(on_shared_tools=on == "shared")
    few = any(one.calls < FEW_SHARED * calls[one.key] for one in (compared.first, compared.second))
    if on == "shared" and not asked and (few or not compared.tools):
        on, compared = "all", compare()
    one, two = compared.first, compared.second
    more_often = second if (two.loops_per_1000_calls or 0) > (one.loops_per_1000_calls or 0) else first
    return Comparison(
        compared,
        names[:100],
        on,
        _whiskers(one, two),
        _cost_words(one, two),
        more_often,
        _limit_url(request, by, more_often) if compared.differs else "",
    )


def _whiskers(*rows: RateRow) -> list[Whisker]:
    top = nice_top(max((row.loops_interval.high for row in rows if row.loops_interval), default=0))
    found = []
    for color, row in zip((2, 5), rows, strict=True):
        interval, rate = row.loops_interval, row.loops_per_1000_calls
        if interval is None or rate is None:
            found.append(Whisker(row.key, color, "0%", "0%", "", "no calls"))
            continue
        low, high, dot = (
            f"{100 * value / top:.2f}%" for value in (interval.low, interval.high - interval.low, rate)
        )
        words = f"{rate:.1f} ({interval.low:.1f}–{interval.high:.1f})"
        found.append(Whisker(row.key, color, low, high, dot, words))
    return found


def _cost_words(one: RateRow, two: RateRow) -> str:
    """Return what a loop costs on average, where both have a cost."""
    if not (one.loops and two.loops and one.loop_cost_usd and two.loop_cost_usd):
        return ""
    first, second = one.loop_cost_usd / one.loops, two.loop_cost_usd / two.loops
    return f"A loop of {visible(one.key)} cost {money(first)}, one of {visible(two.key)} {money(second)}."


def _limit_url(request: ProjectRequest, by: By, key: str) -> str:
    """Return the address at which the limit for identical calls is changed for one of the two; empty for no name."""
    if not key:
        return ""
    slug, came_from = request.project.slug, request.get_full_path()
    if by == "agent":
        return change_url(slug, LIMIT, str(Scope.of(agent=key)), came_from, CallNames(agent=key))
    if by == "tool":
        return change_url(slug, LIMIT, str(Scope("tool", pattern=key)), came_from, CallNames(tool=key))
    rows = Session.objects.filter(project_id=request.project.pk, model=key).exclude(backend="")
    backend = rows.order_by("-last_event_at").values_list("backend", flat=True).first()
    if not backend:
        return ""
    names = CallNames(backend=backend, model=key)
    return change_url(slug, LIMIT, str(Scope.of(backend=backend, model=key)), came_from, names)
