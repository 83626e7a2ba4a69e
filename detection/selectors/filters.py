"""Filters as SQL: the fields that a list declares, and the query from terms, time range and order.

Which list has which fields is in `detection.selectors.lists`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Any, Final, Literal

from django.db import models
from django.db.models import F, Func, Q, QuerySet

from detection import clock
from detection.filtering import language, time_ranges
from detection.filtering.language import FilterError, Term, Value
from detection.filtering.time_ranges import ALL_TIME, TimeRange
from detection.selectors.pages import Order, SortKey

FieldType = Literal["text", "choice", "number", "time"]
COMPLETED_ROWS: Final = 2_000
"""Newest rows of a list whose values are offered as completions."""
MAX_OTHER_VALUES: Final = 20_000
"""Rows of another table that are read for completions."""
MAX_COMPLETIONS: Final = 50
_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """A value of a field of the type `choice`; `condition` is for those that are not simply equal to the column."""

    value: str
    words: str
    condition: Callable[[datetime], Q] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterField:
    """A field of a list in the filter language.

    Attributes
    ----------
    name
        In filters; lower case.
    type
        ``text``: equal, or with `*` for any characters; ``choice``: one of `choices`; ``number`` and ``time``: also
        `>`, `>=`, `<`, `<=` and `a..b`.
    help
        What it is, for completion and documentation.
    column
        The Django lookup path. Must not be null for numbers; may be for others.
    completes
        Whether values of the newest rows are offered (`text` only).
    is_whole
        Whether the column holds whole numbers (`number` only).
    match
        Returns the condition of a value that is not in a column (`text` only, without `*`).
    also
        Returns the condition that another table has the value, given the condition on a column of any name (`text`
        only).
    also_values
        Returns what the other table has for some rows, for completion.
    """

    name: str
    type: FieldType
    help: str
    column: str = ""
    choices: tuple[FieldChoice, ...] = ()
    completes: bool = True
    is_whole: bool = False
    match: Callable[[str], Q] | None = None
    also: Callable[[Callable[[str], Q]], Q] | None = None
    also_values: Callable[[QuerySet[Any]], QuerySet[Any, str]] | None = None

    def condition(self, term: Term, now: datetime, zone: tzinfo) -> Q:
        """Return a term of this field as a condition, including a leading minus.

        Raises
        ------
        FilterError
        """
        read = {"text": self._text, "choice": self._choice, "number": self._number, "time": self._time}[
            self.type
        ]
        if term.operator and self.type in ("text", "choice"):
            raise FilterError(
                f"`{self.name}` cannot be compared with `{term.operator}`. Use `{self.name}:value`."
            )
        wanted = Q()
        for value in term.values:
            wanted |= read(term.operator, value, now, zone)
        return ~wanted if term.is_negated else wanted

    def _text(self, operator: str, value: Value, now: datetime, zone: tzinfo) -> Q:
        if self.match is not None:
            return self.match(value.text)

        def condition_on(column: str) -> Q:
            if value.is_quoted or "*" not in value.text:
                return Q(**{column: value.text})
            return Q(Like(F(column), models.Value(like_pattern(value.text))))

        own = condition_on(self.column)
        return own | self.also(condition_on) if self.also else own

    def _choice(self, operator: str, value: Value, now: datetime, zone: tzinfo) -> Q:
        for choice in self.choices:
            if choice.value == value.text.lower():
                return choice.condition(now) if choice.condition else Q(**{self.column: choice.value})
        allowed = ", ".join(f"`{choice.value}`" for choice in self.choices)
        raise FilterError(f"`{value.text[:40]}` is not a value of `{self.name}`. Values: {allowed}.")

    def _number(self, operator: str, value: Value, now: datetime, zone: tzinfo) -> Q:
        first, dots, last = value.text.partition("..")
        if dots and not operator:
            low, high = self._decimal(first), self._decimal(last)
            if low > high:
                raise self._reversed(value)
            return Q(**{f"{self.column}__gte": low, f"{self.column}__lte": high})
        return Q(**{self.column + _LOOKUPS[operator]: self._decimal(value.text)})

    def _reversed(self, value: Value) -> FilterError:
        return FilterError(f"The start of `{self.name}:{value.text[:80]}` must not be after its end.")

    def _decimal(self, text: str) -> Decimal:
        if not _NUMBER.fullmatch(text):
            raise FilterError(
                f"`{text[:40]}` is not a number. Use `{self.name}:3`, `{self.name}:>3` or `{self.name}:1..3`."
            )
        number = Decimal(text)
        if self.is_whole and number % 1:
            raise FilterError(f"`{self.name}` is a whole number, not {text}.")
        return number

    def _time(self, operator: str, value: Value, now: datetime, zone: tzinfo) -> Q:
        first, dots, last = value.text.partition("..")
        start, end = time_ranges.moment(first, now, zone)
        if dots and not operator:
            last_start, end = time_ranges.moment(last, now, zone)
            if start > last_start:
                raise self._reversed(value)
        if operator:
            # Behind a date is the next day, and before it the day before.
            instant = end if operator in (">", "<=") and end != start else start
            lookup = {">": "__gte", "<=": "__lt"}.get(operator, "") if end != start else ""
            return Q(**{self.column + (lookup or _LOOKUPS[operator]): instant})
        closed = "__lte" if start == end else "__lt"
        return Q(**{f"{self.column}__gte": start, f"{self.column}{closed}": end})


_LOOKUPS = {"": "", ">": "__gt", ">=": "__gte", "<": "__lt", "<=": "__lte"}


class Like(Func):
    """``column LIKE pattern``."""

    template = "%(expressions)s"
    arg_joiner = " LIKE "
    output_field = models.BooleanField()
    conditional = True


def like_pattern(text: str) -> str:
    """Return a text with `*` as a pattern of LIKE."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def flag_field(name: str, help: str, yes: Q) -> FilterField:  # noqa: A002
    """Return a field with the values yes and no."""

    def always(condition: Q) -> Callable[[datetime], Q]:
        return lambda _: condition

    choices = (FieldChoice("yes", "", always(yes)), FieldChoice("no", "", always(~yes)))
    return FilterField(name=name, type="choice", help=help, choices=choices)


def _in_no_session(text: str) -> Q:
    return Q(pk__isnull=True)


TEXT_FIELD: Final = FilterField(
    name="text",
    type="text",
    help="Words in a call, a result or a message of the session, or in its names",
    completes=False,
    match=_in_no_session,
)
"""Its condition is that of `ListQuery.found`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSpec:
    """The fields and orders of a list.

    Attributes
    ----------
    name, words
        Stable name, and what its rows are called in messages, in the plural.
    model
        The table.
    fields
        In the order of the documentation.
    search
        Columns that a word is searched for in, ignoring case.
    contents
        Column of the session in whose calls, results and messages words are searched for, too. Empty if none.
    time, time_words
        Column of the time range, and what it is called: "Opened".
    also_since
        A later time of the same row that has the index; it cannot be before `time`.
    sorts
        What the list can be sorted by; the first is the default, descending.
    newest
        Column by which rows are the newest, for completion, where the list does not show rows of `model` as they are.
        Empty for the column of the first order.
    default_text
        The filter of an address without one.
    default_range
        The range of an address without one; if set, all time cannot be chosen.
    example
        A filter that shows the language.
    """

    name: str
    words: str
    model: type[models.Model]
    fields: tuple[FilterField, ...]
    search: tuple[str, ...]
    time: str
    time_words: str
    sorts: tuple[SortKey, ...]
    contents: str = ""
    also_since: str = ""
    newest: str = ""
    default_text: str = ""
    default_range: str = ""
    example: str = ""

    def has(self, name: str) -> bool:
        """Return whether there is a field of this name."""
        return any(one.name == name for one in self.fields)

    def field(self, name: str) -> FilterField:
        """Return the field of this name.

        Raises
        ------
        FilterError
            Lists the available fields.
        """
        for one in self.fields:
            if one.name == name:
                return one
        names = [one.name for one in self.fields]
        shown = {one.help.lower(): one.name for one in self.fields}
        near = [shown[name]] if name in shown else difflib.get_close_matches(name, names, 1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        known = ", ".join(f"`{one}`" for one in sorted(names))
        raise FilterError(
            f"`{name}` is not a field of {self.words}.{hint} Fields: {known}. Put text with a colon in quotes."
        )

    def order(self, text: str) -> Order:
        """Return the order of an address: a name of `sorts`, with a minus if descending; otherwise the default."""
        known = {key.name: key for key in self.sorts}
        key = known.get(text.removeprefix("-"))
        return Order(key, is_descending=text.startswith("-")) if key else Order(self.sorts[0])


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which rows of a list to select, and in which order. Created by `list_query`, so every term is valid.

    Attributes
    ----------
    now, zone
        Reference time and zone for ages and for dates without an offset.
    found
        The sessions that contain each word of `content_words`, see `selectors.search.with_contents`.
    is_partial
        More sessions than those may contain them.
    is_empty
        No row matches, because the filter is not valid.
    """

    spec: ListSpec
    order: Order
    terms: tuple[Term, ...] = ()
    range: TimeRange = ALL_TIME
    now: datetime = field(default_factory=clock.now)
    zone: tzinfo = UTC
    found: Mapping[str, Collection[int]] = field(default_factory=dict)
    is_partial: bool = False
    is_empty: bool = False

    def condition(self, *, without: Collection[str] = ()) -> Q:
        """Return terms and range as a condition, except terms of the fields `without`."""
        if self.is_empty:
            return Q(pk__isnull=True)
        wanted = Q()
        for term in language.without(self.terms, without):
            wanted &= self._of(term)
        time = self.spec.time
        if self.range.start:
            wanted &= Q(**{f"{time}__gte": self.range.start})
            if self.spec.also_since:
                wanted &= Q(**{f"{self.spec.also_since}__gte": self.range.start})
        if self.range.end:
            wanted &= Q(**{f"{time}__lt": self.range.end})
        return wanted

    @property
    def content_words(self) -> tuple[str, ...]:
        """The words that are searched for in contents; one that is excluded without a field is so by names only."""
        if not self.spec.contents:
            return ()
        terms = (
            one for one in self.terms if one.field == TEXT_FIELD.name or not (one.field or one.is_negated)
        )
        return tuple(dict.fromkeys(value.text for term in terms for value in term.values))

    def _in_contents(self, term: Term) -> Q:
        ids = {session for value in term.values for session in self.found.get(value.text, ())}
        return Q(**{f"{self.spec.contents}__in": ids}) if ids else Q(pk__isnull=True)

    def _of(self, term: Term) -> Q:
        if term.field:
            # Also tells a wrong operator.
            wanted = self.spec.field(term.field).condition(term, self.now, self.zone)
            if term.field != TEXT_FIELD.name:
                return wanted
            return ~self._in_contents(term) if term.is_negated else self._in_contents(term)
        in_contents = not term.is_negated and self.found.get(term.values[0].text)
        found = self._in_contents(term) if in_contents else Q()
        for column in self.spec.search:
            found |= Q(**{f"{column}__icontains": term.values[0].text})
        return ~found if term.is_negated else found

    def with_names(self, stored: Callable[[str], str]) -> ListQuery:
        """Return the query with each value as `stored` returns it: a name with a secret is stored without it."""
        return replace(self, terms=tuple(term.with_values(stored) for term in self.terms))

    def narrowed(self, *terms: Term) -> ListQuery:
        """Return the query with more terms."""
        return replace(self, terms=(*self.terms, *terms))

    def only(self, name: str) -> str:
        """Return the value of a field if exactly one term selects exactly one, else nothing."""
        found = [term for term in self.terms if term.field == name]
        if len(found) != 1 or found[0].is_negated or found[0].operator or len(found[0].values) != 1:
            return ""
        return found[0].values[0].text.lower()


def list_query(
    spec: ListSpec,
    text: str = "",
    *,
    terms: tuple[Term, ...] = (),
    range: TimeRange = ALL_TIME,  # noqa: A002 - what it is called everywhere
    sort: str = "",
    zone: tzinfo = UTC,
) -> ListQuery:
    """Return the query of a filter as text, of more terms, a range and an order.

    Raises
    ------
    FilterError
        If a term cannot be applied to this list. Costs no query.
    """
    query = ListQuery(spec, spec.order(sort), (*language.parse(text), *terms), range, zone=zone)
    query.condition()
    return query


def given_terms(given: Mapping[str, Any]) -> tuple[Term, ...]:
    """Return the terms of typed parameters: equality with the values that are not empty; booleans as yes and no."""
    found = []
    for name, value in given.items():
        if isinstance(value, bool):
            found.append(language.term(name, "yes" if value else "no"))
        elif value:
            found.append(language.term(name, str(value)))
    return tuple(found)


def complete(spec: ListSpec, rows: QuerySet[Any], name: str, prefix: str) -> list[str]:
    """Return values of a text field in the newest rows that contain a text, with those that begin with it first.

    Parameters
    ----------
    rows
        Of one project.

    Raises
    ------
    FilterError
        If the list has no such field.
    """
    column = spec.field(name)
    if column.type != "text" or not column.completes:
        return []
    newest = rows.order_by(f"-{spec.newest or spec.sorts[0].column}", "-id")[:COMPLETED_ROWS]
    found: set[str | None] = {*newest.values_list(column.column, flat=True)}
    if column.also_values is not None:
        found.update(column.also_values(newest)[:MAX_OTHER_VALUES])
    wanted = prefix.lower()
    near = [value for value in found if value and wanted in value.lower()]
    return sorted(near, key=lambda value: (not value.lower().startswith(wanted), value))[:MAX_COMPLETIONS]
