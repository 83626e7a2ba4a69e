"""Fields of listed rows, each described once: documents, columns of files, schemas, filters and orders follow from it.

A row is a frozen dataclass. Its fields are annotated with `Shown`: ``tool: Annotated[str, Shown("The tool.")]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from types import NoneType
from typing import Any, Literal, Optional, get_args, get_type_hints

from django.db.models import F, Q
from django.db.models.expressions import Combinable

from detection.selectors.filters import FieldType, FilterField, flag_field
from detection.selectors.pages import SortKey


@dataclass(frozen=True, slots=True)
class Shown:
    """How a field of a row is read and shown.

    Attributes
    ----------
    description
        For the API; a field without one is in no document.
    name
        In documents; empty for the name in the row.
    column
        Lookup path or expression, without one the name in the row.
    choices
        The values that it can have, if they are few.
    is_optional
        Whether an empty text is null in documents.
    show
        Returns the value for documents from the row, if it is not simply that of the row.
    filter, help, completes
        Name in filters, if it can be filtered; what it is, if not just as in the API; whether its values are offered.
    sort
        Name of the order by it, if there is one.
    """

    description: str = ""
    name: str = ""
    column: str | Combinable = ""
    choices: tuple[str, ...] = ()
    is_optional: bool = False
    show: Callable[[Any], Any] | None = None
    filter: str = ""
    help: str = ""
    completes: bool = True
    sort: str = ""


@dataclass(frozen=True, slots=True)
class RowField:
    """A field of a row with its description."""

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
        parts = [part for part in get_args(self.type) if part is not NoneType]
        return parts[0] if parts else self.type

    @property
    def document_type(self) -> Any:
        """The type in documents."""
        kind: Any = float if self.plain_type is Decimal else self.plain_type
        if self.shown.choices:
            literal: Any = Literal
            kind = literal[self.shown.choices]
        is_nullable = self.shown.is_optional or NoneType in get_args(self.type)
        return Optional[kind] if is_nullable else kind  # noqa: UP045 - the type is a value here

    def value(self, row: Any) -> Any:
        """Return the value for documents."""
        found = self.shown.show(row) if self.shown.show else getattr(row, self.attribute)
        if isinstance(found, datetime):
            return found.isoformat()
        return (
            float(found)
            if isinstance(found, Decimal)
            else (found or None)
            if self.shown.is_optional
            else found
        )


@cache
def row_fields(row: Any) -> tuple[RowField, ...]:
    """Return the fields of a kind of rows in order."""
    hints = get_type_hints(row, include_extras=True)
    found = []
    for name in row.__dataclass_fields__:
        hint = hints[name]
        shown = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Shown)), Shown())
        found.append(
            RowField(
                name, getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint, shown
            )
        )
    return tuple(found)


@cache
def shown_fields(row: Any) -> tuple[RowField, ...]:
    """Return the fields that documents have."""
    return tuple(field for field in row_fields(row) if field.shown.description)


def columns_of(row: Any) -> dict[str, Combinable]:
    """Return what is read for each field."""
    return {
        field.attribute: F(field.column) if isinstance(field.shown.column, str) else field.shown.column
        for field in row_fields(row)
    }


def document_of(row: Any) -> dict[str, Any]:
    """Return a row as a document."""
    kind: Any = type(row)
    return {field.name: field.value(row) for field in shown_fields(kind)}


def filters_of(row: Any) -> tuple[FilterField, ...]:
    """Return the fields of filters."""
    return tuple(_filter(field) for field in row_fields(row) if field.shown.filter)


def _filter(field: RowField) -> FilterField:
    shown = field.shown
    words = shown.help or shown.description.removesuffix(".")
    if field.plain_type is bool:
        return flag_field(shown.filter, words, Q((field.column, True)))
    types: dict[Any, FieldType] = {int: "number", float: "number", Decimal: "number", datetime: "time"}
    return FilterField(
        name=shown.filter,
        type=types.get(field.plain_type, "text"),
        help=words,
        column=field.column,
        completes=shown.completes,
        is_whole=field.plain_type is int,
    )


def sorts_of(row: Any, first: str) -> tuple[SortKey, ...]:
    """Return the orders, that of this name first."""
    types: dict[Any, Literal["time", "number", "text"]] = {datetime: "time", str: "text"}
    keys = [
        SortKey(field.shown.sort, field.column, types.get(field.plain_type, "number"))
        for field in row_fields(row)
        if field.shown.sort
    ]
    return tuple(sorted(keys, key=lambda key: key.name != first))
