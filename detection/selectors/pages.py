"""Cursor pages: a page starts after the sort key of the last row of the previous one, never at an offset."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, Literal, TypeVar

from django.db.models import Q, QuerySet

Row = TypeVar("Row")
MAX_ID = 2**63 - 1
CHUNK_ROWS = 500
"""Number of rows that an export reads at once."""
_FOREIGN = "`cursor` must be a `next_cursor` of this list."


class BadCursor(ValueError):
    """The cursor was not created by this list."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows of a list.

    Attributes
    ----------
    next_cursor
        Opaque; None at the end of the list.
    """

    items: tuple[Row, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class SortKey:
    """A sort key of a list.

    Attributes
    ----------
    name
        In addresses.
    column
        Name of the column and of the row's attribute; not null.
    """

    name: str
    column: str
    type: Literal["time", "number", "text"] = "time"


@dataclass(frozen=True, slots=True)
class Order:
    """An order of a list, with the cursors of its pages. Rows with equal values are ordered by id."""

    key: SortKey
    is_descending: bool = True

    def __str__(self) -> str:
        return ("-" if self.is_descending else "") + self.key.name

    def page(self, rows: QuerySet[Any], cursor: str, id_column: str = "id") -> QuerySet[Any]:
        """Return rows in this order, those after the cursor if there is one.

        Parameters
        ----------
        id_column
            Column of the row's `id`, for rows that are grouped.

        Raises
        ------
        BadCursor
        """
        if cursor:
            rows = rows.filter(self._beyond(cursor, id_column))
        sign = "-" if self.is_descending else ""
        return rows.order_by(sign + self.key.column, sign + id_column)

    def cursor(self, row: Any) -> str:
        """Return the cursor after a row."""
        return self.cursor_at(row.id, getattr(row, self.key.column))

    def cursor_at(self, number: int, value: Any) -> str:
        """Return the cursor after the row with this id and value of the column."""
        text = value.isoformat() if isinstance(value, datetime) else str(value)
        plain = f"{self}|{number}|{text}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    def _beyond(self, cursor: str, id_column: str) -> Q:
        value, number = self._decode(cursor)
        column = self.key.column
        # The first part bounds the scan of an index.
        if self.is_descending:
            return Q(**{f"{column}__lte": value}) & ~Q(**{column: value, f"{id_column}__gte": number})
        return Q(**{f"{column}__gte": value}) & ~Q(**{column: value, f"{id_column}__lte": number})

    def _decode(self, cursor: str) -> tuple[Any, int]:
        try:
            text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
            name, _, rest = text.partition("|")
            number, _, value = rest.partition("|")
            position = int(number)
        except (ValueError, binascii.Error) as error:
            raise BadCursor(_FOREIGN) from error
        if name != str(self) or not 0 <= position <= MAX_ID or "\x00" in value:
            raise BadCursor(_FOREIGN)
        return self._value(value), position

    def _value(self, text: str) -> Any:
        if self.key.type == "text":
            return text
        try:
            found = datetime.fromisoformat(text) if self.key.type == "time" else Decimal(text)
        except (ValueError, InvalidOperation) as error:
            raise BadCursor(_FOREIGN) from error
        if isinstance(found, datetime):
            is_storable = found.tzinfo is not None and 1971 <= found.year <= 9998
        else:
            is_storable = found.is_finite() and abs(found) < MAX_ID
        if not is_storable:
            raise BadCursor(_FOREIGN)
        return found


def all_rows(read: Callable[[str, int], Page[Row]], maximum: int) -> Iterator[Row]:
    """Yield up to `maximum` rows of a list in its order, with a bounded number in memory.

    Parameters
    ----------
    read
        Returns the page after a cursor, with up to a given number of rows.
    """
    cursor: str | None = ""
    left = maximum
    while cursor is not None and left > 0:
        page = read(cursor, min(CHUNK_ROWS, left))
        yield from page.items
        left -= len(page.items)
        cursor = page.next_cursor


def cut(rows: Sequence[Row], limit: int, position: Callable[[Row], str]) -> Page[Row]:
    """Return a page of up to `limit` rows from up to `limit` + 1 fetched ones."""
    return Page(tuple(rows[:limit]), position(rows[limit - 1]) if len(rows) > limit else None)
