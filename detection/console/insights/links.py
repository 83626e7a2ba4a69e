"""Addresses of the rows behind the numbers of Insights: the same filter and time range in another list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial

from django.urls import reverse

from detection.console.listing import Listing
from detection.filtering import language, time_ranges
from detection.filtering.language import Term
from detection.filtering.time_ranges import TimeRange
from detection.selectors.insights import InsightRow
from detection.selectors.lists import INCIDENTS, ONLY_LOOPS, SESSIONS
from detection.selectors.statistics import By


@dataclass(frozen=True)
class Link:
    """A list, with how many rows it has."""

    address: Callable[[], str]
    count: int
    noun: str
    which: str = ""
    """Which of them, where it does not follow from the number."""

    @cached_property
    def url(self) -> str:
        """Address of the list; written when asked for, because most numbers of a page are zero and lead nowhere."""
        return self.address()

    @property
    def title(self) -> str:
        """Title of the link: number and name of the rows."""
        return f"{self.count:,} {self.noun}{'' if self.count == 1 else 's'}{self.which}"


class Links:
    """The links of a page. Incidents are listed with `is` removed from the filter, because all states are counted."""

    def __init__(self, listing: Listing, range: TimeRange, project: str) -> None:  # noqa: A002
        self._listing, self._range = listing, range
        self._incidents = reverse("console:loop_history", args=[project])
        self._sessions = reverse("console:sessions", args=[project])
        self._whole = self._clipped(None, None)

    def _span(self, start: datetime | None, end: datetime | None) -> str:
        return self._whole if start is None is end else self._clipped(start, end)

    def _clipped(self, start: datetime | None, end: datetime | None) -> str:
        first = max(start or self._range.start, self._range.start) if self._range.start else start
        last = min(end or self._range.end, self._range.end) if self._range.end else end
        return f"{time_ranges.written(first)}/{time_ranges.written(last)}"

    def incidents(
        self,
        count: int,
        text: str = "",
        *terms: Term,
        sort: str = "",
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Link:
        """Return the link to the counted incidents, narrowed by a filter and by terms."""
        wanted = (*language.parse(text), *terms)
        span = self._span(start, end)
        address = partial(self._listing.url_in, INCIDENTS, self._incidents, *wanted, range=span, sort=sort)
        return Link(address, count, "incident")

    def sessions(
        self,
        count: int,
        text: str = "",
        *terms: Term,
        sort: str = "",
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Link:
        """Return the link to the sessions whose last event is in the range."""
        wanted = (*language.parse(text), *terms)
        span = self._span(start, end)
        address = partial(self._listing.url_in, SESSIONS, self._sessions, *wanted, range=span, sort=sort)
        return Link(address, count, "session")

    def of_row(self, row: InsightRow, *terms: Term) -> dict[str, Link]:
        """Return the links of the numbers of a group, or of the total, by name."""
        numbers, sessions = row.numbers, row.rate.sessions if row.rate else 0
        loops = numbers.incidents - numbers.false_alarms
        return {
            "incidents": self.incidents(numbers.incidents, "", *terms),
            "loops": self.incidents(loops, ONLY_LOOPS, *terms),
            "true_loops": self.incidents(numbers.true_loops, "label:true_loop", *terms),
            "false_stops": self.incidents(numbers.false_stops, "label:false_alarm blocked:>0", *terms),
            "recovered": self.incidents(numbers.recovered, "recovery:recovered", *terms),
            "blocked": self.incidents(numbers.blocked_incidents, "blocked:>0", *terms, sort="-blocked"),
            "costly": self.incidents(loops, ONLY_LOOPS, *terms, sort="-cost"),
            "sessions": self.sessions(sessions, "", *(term for term in terms if term.field != "detector")),
        }


def group_term(by: By, key: str) -> Term:
    """Return the term that selects a group."""
    return language.term("detector" if by == "kind" else by, key)
