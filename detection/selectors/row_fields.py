"""Fields of listed rows, each described once: documents, columns of files, schemas, filters and orders follow from it.

A field of a row is annotated with `Shown`: ``tool: Annotated[str, Shown("The tool.")]``. Rows are dataclasses, or rows
of a model that a class of annotations describes. Schemas of other documents are descriptions, too: their fields name a
column with `Shown` where it is not called like the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, Optional, get_args, get_type_hints

from django.db.models import Choices, F, Q
from django.db.models.expressions import Combinable

from detection.selectors.filters import FieldChoice, FieldType, FilterField, flag_field
from detection.selectors.pages import SortKey


@dataclass(frozen=True, slots=True)
class Shown:
    """How a field of a row is read and shown.

    Attributes
    ----------
    description
        For the API; a field of a row without one is in no document. Schemas have their own.
    name
        In documents; empty for the name in the row.
    column
        Lookup path or expression, without one the name in the row.
    choices
        The values that it can have, if they are few.
    is_optional
        Whether an empty text or 0 is null in documents.
    show
        Returns the value for documents from the row, if it is not simply that of the row. The type that it is annotated
        with is then that of the field.
    filter, help, completes
        Name in filters, if it can be filtered; what it is, if not just as in the API; whether its values are offered.
    sort
        Name of the order by it, if there is one.
    """

    description: str = ""
    name: str = ""
    column: str | Combinable = ""
    choices: tuple[str, ...] | type[Choices] = ()
    is_optional: bool = False
    show: Callable[[Any], Any] | None = None
    filter: str = ""
    help: str = ""
    completes: bool = True
    sort: str = ""


PUBLIC_ID = Shown(column="public_id")


@dataclass(frozen=True, slots=True)
class RowField:
    """A field of a row with its description."""

    row: Any
    attribute: str
    type: Any
    shown: Shown

    @property
    def name(self) -> str:
        """The name in documents."""
        return self.shown.name or self.attribute

    @property
    def column(self) -> str:
        """The lookup path."""
        return (
            self.shown.column if isinstance(self.shown.column, str) and self.shown.column else self.attribute
        )

    @property
    def plain_type(self) -> Any:
        """The type without null."""
        parts = get_args(self.type)
        return next(part for part in parts if part is not NoneType) if NoneType in parts else self.type

    @property
    def values(self) -> tuple[str, ...]:
        """The values that it can have, if they are few."""
        choices = self.shown.choices
        return choices if isinstance(choices, tuple) else tuple(choices.values)

    @property
    def shown_type(self) -> Any:
        """The type of the value in documents, as rows have it."""
        literal: Any = Literal
        of_show = get_type_hints(self.shown.show).get("return") if self.shown.show else None
        kind = literal[self.values] if self.values else of_show or self.type
        is_nullable = self.shown.is_optional or NoneType in get_args(self.type)
        return Optional[kind] if is_nullable else kind  # noqa: UP045 - the type is a value here

    def reader(self, *, is_own: bool) -> Callable[[Any], Any]:
        """Return what reads the value for documents from a row of the described class, or from one of a model."""
        path = [self.attribute] if is_own else self.column.split("__")
        read = self.shown.show or (attrgetter(path[0]) if len(path) == 1 else partial(_followed, path))
        if self.shown.is_optional:
            return lambda row: read(row) or None
        is_plain = is_own and not self.shown.show and self.plain_type in _PLAIN
        return read if is_plain else lambda row: _shown(read(row))


def _followed(path: list[str], row: Any) -> Any:
    """Return the value at the end of a path, or None if a part of it is."""
    for part in path:
        row = None if row is None else getattr(row, part)
    return row


def is_described(value: Any) -> bool:
    """Return whether a value, or a type, has fields of its own: a dataclass, or a tuple with names."""
    return is_dataclass(value) or hasattr(value, "_fields")


def _shown(value: Any) -> Any:
    """Return a value as documents have it."""
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if is_described(value):
        return document_of(value)
    return [_shown(one) for one in value] if isinstance(value, tuple) else value


_PLAIN = frozenset((str, int, float, bool, dict, list, NoneType))


@cache
def row_fields(row: Any) -> tuple[RowField, ...]:
    """Return the fields of a kind of rows or documents in order."""
    if is_schema := hasattr(row, "model_fields"):
        marked = {name: (field.annotation, field.metadata) for name, field in row.model_fields.items()}
    else:
        hints = get_type_hints(row, include_extras=True)
        marked = {name: (hint, getattr(hint, "__metadata__", ())) for name, hint in hints.items()}
    found = []
    for name, (hint, marks) in marked.items():
        shown = next((one for one in marks if isinstance(one, Shown)), Shown())
        found.append(RowField(row, name, hint.__origin__ if marks and not is_schema else hint, shown))
    return tuple(found)


@cache
def shown_fields(row: Any) -> tuple[RowField, ...]:
    """Return the fields that documents have."""
    return tuple(one for one in row_fields(row) if one.shown.description or hasattr(row, "model_fields"))


def columns_of(row: Any) -> dict[str, Combinable]:
    """Return what is read for each field."""
    return {
        field.attribute: F(field.column) if isinstance(field.shown.column, str) else field.shown.column
        for field in row_fields(row)
    }


def document_of(row: Any, kind: Any = None, **given: Any) -> dict[str, object]:
    """Return a row as a document.

    Parameters
    ----------
    kind
        The class that describes it, if that is not its own.
    given
        Values that do not come from the row alone, by their names in the document.
    """
    described: Any = kind or type(row)
    readers = _readers(described, isinstance(row, described))
    return {name: given[name] if name in given else read(row) for name, read in readers}


@cache
def _readers(row: Any, is_own: bool) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((field.name, field.reader(is_own=is_own)) for field in shown_fields(row))


def filters_of(row: Any) -> tuple[FilterField, ...]:
    """Return the fields of filters."""
    return tuple(_filter(field) for field in row_fields(row) if field.shown.filter)


def _filter(field: RowField) -> FilterField:
    shown = field.shown
    words = shown.help or shown.description.removesuffix(".")
    if field.plain_type is bool:
        return flag_field(shown.filter, words, Q((field.column, True)))
    labels = {} if isinstance(shown.choices, tuple) else dict(shown.choices.choices)
    types: dict[Any, FieldType] = {int: "number", float: "number", Decimal: "number", datetime: "time"}
    return FilterField(
        name=shown.filter,
        type="choice" if field.values else types.get(field.plain_type, "text"),
        help=words,
        column=field.column,
        choices=tuple(FieldChoice(value, labels.get(value, "")) for value in field.values),
        completes=shown.completes,
        is_whole=field.plain_type is int,
    )


def sorts_of(row: Any, first: str = "") -> tuple[SortKey, ...]:
    """Return the orders, that of this name first."""
    types: dict[Any, Literal["time", "number", "text"]] = {datetime: "time", str: "text"}
    keys = [
        SortKey(field.shown.sort, field.column, types.get(field.plain_type, "number"))
        for field in row_fields(row)
        if field.shown.sort
    ]
    return tuple(sorted(keys, key=lambda key: key.name != first))
