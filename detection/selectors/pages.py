"""Cursor pages: a page starts after the sort key of the last row of the previous one, never at an offset."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from django.db.models import Q

Row = TypeVar("Row")
MAX_ID = 2**63 - 1


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
class Position:
    """A position in a list that is sorted by time and id, newest first."""

    at: datetime
    id: int

    def encode(self) -> str:
        """Return the opaque text form."""
        return base64.urlsafe_b64encode(f"{self.at.isoformat()}|{self.id}".encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, cursor: str) -> Position:
        """Read the text form back; `BadCursor` for anything else."""
        try:
            text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
            at, _, number = text.partition("|")
            position = cls(datetime.fromisoformat(at), int(number))
        except (ValueError, binascii.Error) as error:
            raise BadCursor("`cursor` must be a `next_cursor` of this list.") from error
        if (
            position.at.tzinfo is None
            or not 0 <= position.id <= MAX_ID
            or not 1971 <= position.at.year <= 9998
        ):
            raise BadCursor("`cursor` must be a `next_cursor` of this list.")
        return position

    def beyond(self, time_field: str) -> Q:
        """Return the condition of the rows after this position; its first part bounds the index scan."""
        return Q(**{f"{time_field}__lte": self.at}) & ~Q(**{time_field: self.at, "id__gte": self.id})


def cut(rows: Sequence[Row], limit: int, position: Callable[[Row], str]) -> Page[Row]:
    """Return a page of up to `limit` rows from up to `limit` + 1 fetched ones."""
    return Page(tuple(rows[:limit]), position(rows[limit - 1]) if len(rows) > limit else None)
