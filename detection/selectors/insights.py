"""The rows of Insights: statistics and rates of each agent, model, tool or detector, and of the time before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from detection.filtering.time_ranges import ALL_TIME, TimeRange
from detection.selectors.filters import ListQuery
from detection.selectors.lists import SESSIONS
from detection.selectors.pages import Page
from detection.selectors.rates import RateBy, RateRow, rates
from detection.selectors.row_fields import document_of
from detection.selectors.statistics import MAX_ROWS, By, Numbers, Row, ends_of, grouped, ordered_rows

RATES_BY: Final[Mapping[By, RateBy]] = {
    "kind": "detector",
    "tool": "tool",
    "agent": "agent",
    "model": "model",
}
RATE_FIELDS: Final = frozenset({"agent", "backend", "model", "session", "demo"})
"""Fields of a filter under which rates can be counted: those that a session has one value of."""


@dataclass(frozen=True, slots=True)
class InsightRow:
    """A group.

    Attributes
    ----------
    numbers, before
        Statistics of the range, and of the time of the same length before it.
    rate
        None under filters on fields that are not in `RATE_FIELDS`; has the time before, too.
    """

    key: str
    numbers: Numbers
    before: Numbers
    rate: RateRow | None

    def as_document(self) -> dict[str, object]:
        """Return the group as files show it; interval ends have a column each."""
        rate = self.rate or RateRow()
        interval = rate.loops_interval
        return {
            "key": self.key,
            **document_of(self.numbers),
            "sessions": self.rate and rate.sessions,
            "calls": self.rate and rate.calls,
            "loops_per_1000_calls": rate.loops_per_1000_calls,
            "loops_per_1000_calls_low": interval and interval.low,
            "loops_per_1000_calls_high": interval and interval.high,
            "loop_cost_usd_before": self.before.loop_cost_usd,
        }


RATE_COLUMNS: Final = (
    "sessions",
    "calls",
    "loops_per_1000_calls",
    "loops_per_1000_calls_low",
    "loops_per_1000_calls_high",
    "loop_cost_usd_before",
)
"""What a file has besides the statistics."""


@dataclass(frozen=True, slots=True)
class Insights:
    """The total and the groups, in the order of the query."""

    total: InsightRow
    rows: list[InsightRow]


def insights(project_id: int, query: ListQuery, by: By) -> Insights:
    """Return what happened in a time range, in all and in groups; twelve queries.

    Parameters
    ----------
    query
        Of the list `STATISTICS`, with both ends of the range.
    by
        A key of `RATES_BY`, or ``hour`` and ``day``, which have no rates.
    """
    now, before = grouped(project_id, query, by), grouped(project_id, before_of(query), by)
    earlier = {row.key: row.numbers for row in before.rows}
    found, total = _rates(project_id, query, by)
    known = {row.key for row in now.rows}
    more = [Row(key, Numbers()) for key in (found or {}) if key not in known]
    ordered = now.rows if by in ("hour", "day") else ordered_rows([*now.rows, *more], query.order, by)
    return Insights(
        InsightRow("", now.total, before.total, total),
        [
            InsightRow(
                row.key, row.numbers, earlier.get(row.key) or Numbers(), _rate(row.key, found, total, by)
            )
            for row in ordered
        ],
    )


def before_of(query: ListQuery) -> ListQuery:
    """Return the query of the time of the same length before."""
    start, end = ends_of(query)
    return replace(query, range=TimeRange("", start - (end - start), start))


def has_rates(query: ListQuery) -> bool:
    """Return whether rates can be counted under the filter."""
    return not query.is_empty and all(term.field in RATE_FIELDS for term in query.terms)


def _rates(project_id: int, query: ListQuery, by: By) -> tuple[dict[str, RateRow] | None, RateRow | None]:
    if not has_rates(query) or by not in RATES_BY:
        return None, None
    start, end = ends_of(query)
    only = replace(query, spec=SESSIONS, range=ALL_TIME).condition()
    rows = rates([project_id], start, end, RATES_BY[by], with_demo=True, only=only)
    (total,) = rates([project_id], start, end, with_demo=True, only=only)
    return {row.key: row for row in rows}, total


def _rate(key: str, found: dict[str, RateRow] | None, total: RateRow | None, by: By) -> RateRow | None:
    if found is None or total is None:
        return None
    # Every detector sees every call, also one that found nothing.
    calls = (total.sessions, total.calls) if by == "kind" else (0, 0)
    return found.get(key) or RateRow(*calls, key=key)


def list_groups(project_id: int, query: ListQuery, cursor: str, limit: int, *, by: By) -> Page[InsightRow]:
    """Return the rows of `insights` as a list of one page, which has at most 1,000 of them."""
    rows = insights(project_id, query, by).rows
    return Page(tuple(rows[-MAX_ROWS:] if by in ("hour", "day") else rows[:MAX_ROWS]), None)
