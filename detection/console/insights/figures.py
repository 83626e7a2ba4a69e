"""The five figures of a board, each with its change, its rows and its definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from detection.console import formatting
from detection.console.insights.links import Link
from detection.selectors.insights import InsightRow
from detection.selectors.statistics import Numbers


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Attributes
    ----------
    change
        What changed since the previous period, and whether that is ``ok``, to be looked at (``warn``) or neither.
    means
        Its definition.
    """

    words: str
    value: str
    link: Link | None
    change: tuple[str, str] = ("", "")
    note: str = ""
    means: str = ""


NO_CHANGE: Final = ("", "")


def change_of(
    now: float | None, before: float | None, *, less_is_better: bool | None = True
) -> tuple[str, str]:
    """Return the change in percent, from ten times on as a factor, and its tone; nothing without a number before."""
    if now is None or not before:
        return NO_CHANGE
    if now >= 10 * before:
        return f"×{now / before:,.0f}", _tone(1, less_is_better)
    change = round(100 * (now - before) / before)
    return (f"{change:+,d} %".replace("-", "−"), _tone(change, less_is_better)) if change else ("0 %", "")


def points_of(now: float | None, before: float | None, *, less_is_better: bool = True) -> tuple[str, str]:
    """Return the change of a rate in its own unit, and its tone."""
    if now is None or before is None:
        return NO_CHANGE
    change = round(now - before, 1)
    return (
        (f"{change:+.1f}".replace("-", "−"), _tone(change, less_is_better)) if change else ("unchanged", "")
    )


def _tone(change: float, less_is_better: bool | None) -> str:
    if less_is_better is None:
        return ""
    return "ok" if (change < 0) == less_is_better else "warn"


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def percent(value: float | None) -> str:
    """Return a share in percent, with a digit after the point below ten."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def false_stops(numbers: Numbers) -> float | None:
    """Return the share of false stops among the loops with blocked calls."""
    return _share(numbers.false_stops, numbers.blocked_incidents)


def rate_words(value: float | None) -> str:
    """Return loops per 1,000 calls."""
    return "–" if value is None else f"{value:.1f}"


FALSE_STOPS: Final = "Loops with blocked calls that a person called fine, of all loops with blocked calls."
RATE: Final = (
    "Loops by calls, of sessions whose last call is in this time; not spent budgets and those called fine."
)
SAVED: Final = "Each blocked call in a loop at the average cost of the calls of its own loop: an estimate."
COST: Final = (
    "Cost of the calls in loops that nobody called fine. A call counts once, in the loop that found it first."
)


def figures_of(board: str, total: InsightRow, links: Mapping[str, Link | None]) -> list[Figure]:
    """Return the figures of a board."""
    now, before, rate = total.numbers, total.before, total.rate
    cost = Figure(
        "Cost of loops",
        formatting.cost(now.loop_cost_usd),
        links["costly"],
        change_of(now.loop_cost_usd, before.loop_cost_usd),
        "" if now.loop_cost_usd else "no costs known",
        COST,
    )
    saved_now, saved_before = now.saved_cost_usd_estimate, before.saved_cost_usd_estimate
    saved = Figure(
        "Saved by blocking, about",
        formatting.cost(saved_now),
        links["blocked"],
        change_of(saved_now, saved_before, less_is_better=None),
        f"of {formatting.money(saved_now + now.loop_cost_usd)}" if saved_now else "",
        SAVED,
    )
    stops = Figure(
        "False stops",
        percent(false_stops(now)),
        links["false_stops"],
        NO_CHANGE,
        f"{now.false_stops:,} of {now.blocked_incidents:,}"
        if now.blocked_incidents
        else "nothing was blocked",
        FALSE_STOPS,
    )
    per_calls = Figure(
        "Loops per 1,000 calls",
        rate_words(rate.loops_per_1000_calls if rate else None),
        links["sessions"],
        points_of(rate.loops_per_1000_calls, rate.before.loops_per_1000_calls) if rate else NO_CHANGE,
        ""
        if rate is None or rate.loops_interval is None
        else f"({rate.loops_interval.low:.1f}–{rate.loops_interval.high:.1f})",
        f"{RATE} The range is its 95 % interval.",
    )
    blocked = Figure(
        "Calls blocked in loops",
        formatting.compact(now.loop_calls_blocked),
        links["blocked"],
        change_of(now.loop_calls_blocked, before.loop_calls_blocked, less_is_better=None),
        means="Calls that were blocked, held or stopped, without held and delayed calls that were allowed in the end.",
    )
    if board == "cost":
        all_cost = rate.cost_usd if rate else None
        return [
            cost,
            Figure(
                "Cost of all calls",
                formatting.cost(all_cost),
                links["sessions"],
                change_of(all_cost, rate.before.cost_usd, less_is_better=None) if rate else NO_CHANGE,
                means="Cost of the sessions whose last call is in this time, with calls outside loops.",
            ),
            per_calls,
            saved,
            stops,
        ]
    if board == "rate":
        loops, earlier = now.incidents - now.false_alarms, before.incidents - before.false_alarms
        calls = rate.calls if rate else None
        per_thousand = rate.cost_per_1000_calls if rate else None
        return [
            per_calls,
            Figure(
                "Loops found",
                formatting.compact(loops),
                links["loops"],
                change_of(loops, earlier),
                means="Loops that began in this time, also spent budgets; without those that a person called fine.",
            ),
            Figure(
                "Calls",
                formatting.compact(calls),
                links["sessions"],
                change_of(calls, rate.before.calls, less_is_better=None) if rate else NO_CHANGE,
                means="All calls of the sessions whose last call is in this time.",
            ),
            Figure(
                "Sessions",
                formatting.compact(rate.sessions if rate else None),
                links["sessions"],
                change_of(rate.sessions, rate.before.sessions, less_is_better=None) if rate else NO_CHANGE,
                means="Sessions whose last call is in this time.",
            ),
            Figure(
                "Cost per 1,000 calls",
                formatting.cost(per_thousand),
                links["sessions"],
                change_of(per_thousand, rate.before.cost_per_1000_calls) if rate else NO_CHANGE,
                means="Of all calls of these sessions, whether in a loop or not.",
            ),
        ]
    ended, labelled = now.recovered + now.not_recovered, now.true_loops + now.false_alarms
    return [
        saved,
        blocked,
        stops,
        Figure(
            "Recovered after a reaction",
            percent(now.recovery),
            links["recovered"],
            note=f"{now.recovered:,} of {ended:,}" if ended else "",
            means="Loops with a reaction after which the agent changed course, of those that ended or were stopped.",
        ),
        Figure(
            "Confirmed",
            percent(now.precision),
            links["true_loops"],
            note=f"{now.true_loops:,} of {labelled:,} labelled" if labelled else "nothing labelled",
            means="Loops that people confirmed, of all that they labelled.",
        ),
    ]
