"""What the shapes of several resources share: names, times, strict bodies, pages of lists, problems, findings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from ninja import Field, Schema
from pydantic import AfterValidator, AwareDatetime, ConfigDict, StringConstraints

from detection.api import event_parsing


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("Only printable characters.")
    return text


def _storable(moment: datetime) -> datetime:
    if not event_parsing.EARLIEST_YEAR <= moment.year <= event_parsing.LATEST_YEAR:
        raise ValueError(f"Only the years {event_parsing.EARLIEST_YEAR} to {event_parsing.LATEST_YEAR}.")
    # The database takes no offset of sixteen hours or more, which ISO 8601 allows.
    return moment.astimezone(UTC)


Moment = Annotated[AwareDatetime, AfterValidator(_storable)]
"""A time with an offset, in a year that the database and our arithmetic can hold in any zone."""
Word = Annotated[str, StringConstraints(max_length=256), AfterValidator(_printable)]
Reason = Annotated[str, StringConstraints(max_length=300), AfterValidator(_printable)]
Note = Annotated[str, StringConstraints(max_length=1000)]
Name128 = Annotated[str, StringConstraints(max_length=128)]
Name200 = Annotated[str, StringConstraints(max_length=200)]
Name256 = Annotated[str, StringConstraints(max_length=256)]
Decision = Literal["allow", "warn", "block", "hold", "stop"]
Kind = Literal["repeat", "cycle", "similar", "outcome", "stagnation", "budget"]
Row = TypeVar("Row")


class Strict(Schema):
    """A body in which every field is known."""

    model_config = ConfigDict(extra="forbid")


class Problem(Schema):
    """RFC 9457, with a stable code."""

    type: str
    title: str
    status: int
    code: str = Field(description="Stable, in snake case.")
    detail: str
    request_id: str
    path: str = Field("", description="The field to blame, as in calls[0].tool.")
    errors: list[dict[str, str]] = Field(
        [], description="When there are several: path, code and hint of each."
    )


class Listed(Schema, Generic[Row]):
    """A page of a list."""

    items: list[Row]
    next_cursor: str | None = Field(description="Opaque; null at the end.")


class Setting(Schema):
    """A value and the tier that it comes from."""

    value: Any
    source: str


class Finding(Schema):
    """What a detector says."""

    kind: Kind
    count: int
    limit: int
    window_seconds: float | None
    window_calls: int | None
    confidence: float
    results: str
    period: int
