"""Lists in the console: filter, time range and order are stored in the address only.

A view makes one `Listing` from its request and passes it to the template as `listing`; the templates in `lists/` draw
the filter bar, the chips, the range picker, the sortable headers and the export menu from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import cached_property, lru_cache
from typing import Any, TypeVar
from urllib.parse import quote_plus

from django.http import QueryDict
from django.utils import timezone

from detection.console.access import ProjectRequest
from detection.console.accounts import preferences
from detection.filtering import language, time_ranges
from detection.filtering.language import FilterError, Term
from detection.filtering.time_ranges import PRESETS, TimeRange
from detection.models import SavedView
from detection.selectors.filters import ListQuery, ListSpec, list_query
from detection.selectors.pages import BadCursor, Page
from detection.selectors.saved_views import list_views
from detection.selectors.search import with_contents
from detection.services.redaction.redaction import Redactor
from detection.web.exports import EXPORTED_LISTS, MAX_ROWS

Row = TypeVar("Row")
_QUOTED = re.compile(r"`([^`]+)`")
FORMATS = (("csv", "CSV"), ("jsonl", "JSON lines"))


_quoted = lru_cache(maxsize=512)(quote_plus)
"""The links of a page share their ranges and most of their terms."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A term of the filter, with the address of the list without that term."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Tab:
    """One of the links above a list that select one value of the field `is`."""

    value: str
    words: str
    url: str
    count: int | None
    is_capped: bool
    is_current: bool


class Listing:
    """What the address of a list selects, and the addresses of its neighbours.

    Parameters
    ----------
    kept
        Additional parameters of the page that all addresses keep.
    path
        The page of the list, if the request is for another page; empty for the request's own.
    default_range
        Time range to use instead of the list's default.

    Attributes
    ----------
    text
        The filter as typed.
    query
        Without the terms that are not valid; selects nothing if none is, or if the range is not valid.
    files
        Parameters and words of what can be exported, in each format.
    error, range_error
        Why the filter or the range is not valid; empty if it is.
    moved
        The address to redirect to, for forms that submit the two ends of a range or an additional `term`; otherwise
        empty.
    """

    def __init__(
        self,
        request: ProjectRequest,
        spec: ListSpec,
        *,
        kept: Iterable[str] = (),
        path: str = "",
        default_range: str = "",
    ) -> None:
        given = request.GET
        self.files: Iterable[tuple[str, str]] = (("", ""),)
        self.project_id, self.spec, self.path = request.project.pk, spec, path or request.path
        self.default_range = default_range or spec.default_range
        self.kept = {name: given[name] for name in kept if given.get(name)}
        self.text = given.get("q", spec.default_text).strip()
        self.is_first_page, self.cursor = "cursor" not in given, given.get("cursor", "")
        self.zone = preferences.zone(request)
        self._stored_name = Redactor.of_project(request.project).name
        self.ends = given.get("from", "")[:40], given.get("to", "")[:40]
        self.error = self.range_error = self.moved = ""
        self.range = self._range(given)
        self.query = self._query(given.get("sort", ""))
        if "term" in given:
            self.moved = self._with_given_term(given["term"])
        elif any(self.ends) and not self.range_error:
            self.moved = self.url()

    def _range(self, given: QueryDict) -> TimeRange:
        now = timezone.now()
        try:
            if any(self.ends):
                return time_ranges.between(*self.ends, now, self.zone)
            return time_ranges.parse_range(given.get("range") or self.default_range, now, self.zone)
        except FilterError as error:
            self.range_error = _in_quotes(error.detail)
            return TimeRange("/".join(self.ends) if any(self.ends) else given.get("range", "")[:80])

    def _with_given_term(self, text: str) -> str:
        """Return the address with the term of a cell of the list; an unreadable filter stays as typed."""
        try:
            terms = language.parse(text)
        except FilterError:
            terms = ()
        if terms and self.is_partly_applied:
            typed = language.without(language.parse(self.text), {one.field for one in terms})
            return self.url(q=language.write((*typed, *terms)))
        if self.error:
            return self.url()
        return self.with_terms(*terms, without={one.field for one in terms}) if terms else self.url()

    def _query(self, sort: str) -> ListQuery:
        try:
            found = list_query(self.spec, self.text, range=self.range, sort=sort, zone=self.zone)
        except FilterError as error:
            self.error = _in_quotes(error.detail)
            found = self._without_invalid(sort)
        found = found.with_names(self._stored_name)
        if self.range_error:
            return replace(found, is_empty=True)
        try:
            return with_contents(self.project_id, found)
        except FilterError as error:
            self.error = _in_quotes(error.detail)
            return replace(found, is_empty=True)

    def _without_invalid(self, sort: str) -> ListQuery:
        """Return the query of the terms that can be applied; it selects nothing if there are none."""

        def query(*terms: Term) -> ListQuery:
            return list_query(self.spec, terms=terms, range=self.range, sort=sort, zone=self.zone)

        valid = []
        with suppress(FilterError):
            for term in language.parse(self.text):
                with suppress(FilterError):
                    query(term)
                    valid.append(term)
        return replace(query(*valid), is_empty=not valid)

    @property
    def is_partly_applied(self) -> bool:
        """Whether the rows are those of the valid terms of an invalid filter. No action applies to all of them."""
        return bool(self.error) and not self.query.is_empty

    @property
    def is_chosen(self) -> bool:
        """Whether the list is empty because of what was asked for, if it is empty: a filter, a range, or an error."""
        return bool(self.is_invalid or self.query.terms or self.range.text)

    @property
    def is_invalid(self) -> bool:
        """Whether the filter or the range could not be read."""
        return bool(self.error or self.range_error)

    def page(self, read: Callable[..., Page[Row]], rows: int, **more: Any) -> Page[Row]:
        """Return the rows that the address selects; none for a cursor from another list.

        Parameters
        ----------
        read
            Reads a page: project id, query, cursor, number of rows, `more`.
        """
        try:
            return read(self.project_id, self.query, self.cursor, rows, **more)
        except BadCursor:
            return Page((), None)

    # Addresses

    def url(self, **changes: str) -> str:
        """Return the address of the list with some of `q`, `range`, `sort`, `cursor` and kept parameters changed.

        Unless `cursor` is given, this is the address of the first page.
        """
        values = {
            **self.kept,
            "q": self.text,
            "range": self.range.text,
            "sort": str(self.query.order),
            **changes,
        }
        defaults = {
            "q": self.spec.default_text,
            "range": self.default_range,
            "sort": str(self.spec.order("")),
        }
        query = QueryDict(mutable=True)
        for name, value in values.items():
            if value != defaults.get(name, ""):
                query[name] = value
        return f"{self.path}?{query.urlencode()}" if query else self.path

    def with_terms(self, *terms: Term, without: Iterable[str] = ()) -> str:
        """Return the address with more terms and without those of some fields."""
        kept = language.without(self.query.terms, {*without})
        return self.url(q=language.write((*(one for one in kept if one not in terms), *terms)))

    def url_in(self, spec: ListSpec, path: str, *terms: Term, **changes: str) -> str:
        """Return the address of another list with additional terms and those of this filter that it has fields for."""
        kept = (
            one for one in self.query.terms if not one.field or (one.field != "is" and spec.has(one.field))
        )
        values = {"q": language.write(dict.fromkeys((*kept, *terms))), "range": self.range.text, **changes}
        written = [f"{name}={_quoted(value)}" for name, value in values.items() if value or name == "q"]
        return f"{path}?{'&'.join(written)}"

    def next_page(self, cursor: str | None) -> str:
        """Return the address of the page after a cursor; empty if there is none."""
        return self.url(cursor=cursor) if cursor else ""

    @cached_property
    def cleared(self) -> str:
        """The address without filter and range."""
        return self.url(q="", range="")

    @property
    def any_time(self) -> str:
        """The address with the filter and without the range; empty if there is no range to remove."""
        return "" if self.default_range or not self.range.text else self.url(range="")

    # Parts of the page

    def is_narrowed(self, *except_fields: str) -> bool:
        """Return whether the range or terms exclude anything, ignoring terms of some fields."""
        return bool(self.query.range.text or language.without(self.query.terms, except_fields))

    @cached_property
    def chips(self) -> list[Chip]:
        """The terms of the filter, each with the address without it."""
        terms = self.query.terms
        return [
            Chip(str(term), self.url(q=language.write((*terms[:place], *terms[place + 1 :]))))
            for place, term in enumerate(terms)
        ]

    def tabs(
        self, choices: Iterable[tuple[str, str]], counts: Any, exact: Iterable[str] = (), *, field: str = "is"
    ) -> list[Tab]:
        """Return a tab for each value of a field, and for all rows.

        Parameters
        ----------
        choices
            Value and words; an empty value stands for all rows.
        counts
            Has an attribute for each value, `all` and `is_capped`; None for tabs without counts. Not used where nothing
            could be counted.
        exact
            Values whose count is exact even if `is_capped` is true.
        """
        counts = None if self.is_invalid else counts
        chosen = self.query.only(field) or ("" if not self.has(field) else None)
        capped = bool(counts) and counts.is_capped
        return [
            Tab(
                value,
                words,
                self.with_terms(*([language.term(field, value)] if value else ()), without=(field,)),
                getattr(counts, value or "all") if counts else None,
                capped and value not in exact,
                value == chosen and not self.error,
            )
            for value, words in choices
        ]

    def has(self, field: str) -> bool:
        """Return whether the filter has a term of a field."""
        return any(term.field == field for term in self.query.terms)

    @cached_property
    def hidden(self) -> list[tuple[str, str]]:
        """The parameters that the form of the filter keeps, besides the filter."""
        values = {**self.kept, "range": self.range.text, "sort": str(self.query.order)}
        return [
            (name, value) for name, value in values.items() if value and value != str(self.spec.order(""))
        ]

    @property
    def view_query(self) -> str:
        """The query string that a saved view stores: filter, range and order only."""
        return self.url(cursor="").partition("?")[2]

    @cached_property
    def views(self) -> list[tuple[SavedView, str, bool]]:
        """The saved views of the list, each with its address and whether the page shows it; one query."""
        own = self.view_query
        return [
            (view, f"{self.path}?{view.query}" if view.query else self.path, view.query == own)
            for view in list_views(self.project_id, self.spec.name)
        ]

    @property
    def is_exported(self) -> bool:
        """Whether the list has an export."""
        return self.spec.name in EXPORTED_LISTS

    @property
    def most_rows(self) -> int:
        """Maximum number of rows in a file."""
        return MAX_ROWS

    @cached_property
    def exports(self) -> list[tuple[str, str]]:
        """Query and words of each file that the list can be exported to."""
        query = self.url(cursor="").partition("?")[2]
        return [
            (f"?{query}{'&' if query else ''}{rows}format={key}", f"{which}{words}")
            for rows, which in self.files
            for key, words in FORMATS
        ]

    @cached_property
    def presets(self) -> list[tuple[str, str, bool]]:
        """For each range: address, words, and whether it is selected."""
        return [
            (self.url(range=text), words, text == self.range.text)
            for text, words in [
                *({"": "All time"} if not self.default_range else {}).items(),
                *PRESETS.items(),
                *self._weeks(),
            ]
        ]

    def _weeks(self) -> list[tuple[str, str]]:
        """Return this week and the last one, from Monday to Sunday in the reader's time zone."""
        today = timezone.now().astimezone(self.zone).date()
        this = today - timedelta(days=today.weekday())
        return [self._week("This week", this), self._week("Last week", this - timedelta(days=7))]

    def _week(self, name: str, monday: date) -> tuple[str, str]:
        """Return the range of a week, and its name with its first and last day."""
        sunday = monday + timedelta(days=6)
        first, following = (
            time_ranges.written(datetime.combine(day, time(), self.zone))
            for day in (monday, sunday + timedelta(days=1))
        )
        begin = f"{monday.day}–" if monday.month == sunday.month else f"{monday.day} {monday:%b} – "
        return f"{first}/{following}", f"{name}, {begin}{sunday.day} {sunday:%b}"

    @property
    def range_words(self) -> str:
        """The chosen range for people."""
        text = self.range.text
        if self.range_error:
            return text.replace("/", " – ")
        if not text:
            return "All time"
        if text in (weeks := dict(self._weeks())):
            return weeks[text]
        if "/" not in text:
            return PRESETS.get(text) or f"Last {text}"
        first, last = (self._shown(end) for end in (self.range.start, self.range.end))
        return f"{first} – {last}" if first and last else f"Since {first}" if first else f"Until {last}"

    @property
    def nothing(self) -> str:
        """That no row is listed: none is open, if the page shows those by itself, or none matches."""
        is_open_tab = self.text == self.spec.default_text == "is:open" and not self.range.text
        return f"No {'open' if is_open_tab else 'matching'} {self.spec.words}"

    @property
    def range_dates(self) -> str:
        """Both ends of the chosen range, for a tooltip; empty for all time."""
        if self.range_error or not self.range.text:
            return ""
        first, last = (
            f"{end.astimezone(self.zone):%-d %b %Y, %H:%M}" if end else missing
            for end, missing in ((self.range.start, "…"), (self.range.end, "now"))
        )
        return f"{first} – {last}, {self.zone}"

    def _shown(self, instant: datetime | None) -> str:
        if instant is None:
            return ""
        own = instant.astimezone(self.zone)
        return f"{own:%-d %b %Y}" + ("" if own.hour == own.minute == 0 else f", {own:%H:%M}")

    @property
    def zone_name(self) -> str:
        """The time zone of the two ends."""
        return str(self.zone)

    @property
    def shown_ends(self) -> tuple[str, str]:
        """The two ends of the range as the form shows them: as typed, or from the chosen range."""
        if any(self.ends) or "/" not in self.range.text:
            return self.ends
        first, last = (
            f"{end.astimezone(self.zone):%Y-%m-%dT%H:%M}" if end else ""
            for end in (self.range.start, self.range.end)
        )
        return first, last


@dataclass(frozen=True, slots=True)
class SortHeader:
    """The header of a column by which a list can be sorted.

    Attributes
    ----------
    direction
        ``ascending`` or ``descending``; empty while the list is sorted by another column.
    """

    words: str
    classes: str
    url: str
    direction: str


def sort_header(listing: Listing, name: str, words: str, classes: str = "") -> SortHeader:
    """Return the header of a column: the first click sorts texts ascending, others descending; the second reverses."""
    order = listing.query.order
    key = next(one for one in listing.spec.sorts if one.name == name)
    is_current = order.key.name == name
    is_descending = not order.is_descending if is_current else key.type != "text"
    direction = ("descending" if order.is_descending else "ascending") if is_current else ""
    return SortHeader(words, classes, listing.url(sort=("-" if is_descending else "") + name), direction)


def _in_quotes(detail: str) -> str:
    """Return an error of the API with the names in it in quotation marks."""
    return _QUOTED.sub(r"“\1”", detail)
