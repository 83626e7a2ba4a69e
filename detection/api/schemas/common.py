"""Schemas and types that several resources share: names, times, strict bodies, pages, problems, findings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from types import GenericAlias, NoneType
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar, get_args, get_origin

from ninja import Field, Schema
from pydantic import (
    AfterValidator,
    AwareDatetime,
    ConfigDict,
    StringConstraints,
    WithJsonSchema,
    create_model,
)

from detection.engine.detectors import KINDS
from detection.filtering import language
from detection.selectors.row_fields import is_described, shown_fields
from detection.services.events.event_records import EARLIEST_YEAR, LATEST_YEAR
from detection.web import exports


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must contain printable characters only")
    return text


def _storable(moment: datetime) -> datetime:
    if not EARLIEST_YEAR <= moment.year <= LATEST_YEAR:
        raise ValueError(f"must be between the years {EARLIEST_YEAR} and {LATEST_YEAR}")
    # ISO 8601 allows offsets of sixteen hours and more, PostgreSQL does not.
    return moment.astimezone(UTC)


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"Must be one of {', '.join(KINDS)}.")
    return kind


Timestamp = Annotated[AwareDatetime, AfterValidator(_storable)]
"""A time with an offset, within the years that the database can store in every zone."""
ShortText = Annotated[str, StringConstraints(max_length=256), AfterValidator(_printable)]
Cursor = Annotated[str, StringConstraints(max_length=2_000), AfterValidator(_printable)]
"""Contains the value that a list is sorted by: of a name of 256 characters, up to 1,450 in all."""
FilterText = Annotated[str, StringConstraints(max_length=language.MAX_LENGTH)]
Reason = Annotated[str, StringConstraints(max_length=300), AfterValidator(_printable)]
Note = Annotated[str, StringConstraints(max_length=1000)]
Name128 = Annotated[str, StringConstraints(max_length=128)]
Name200 = Annotated[str, StringConstraints(max_length=200)]
Name256 = Annotated[str, StringConstraints(max_length=256)]
Decision = Literal["allow", "warn", "block", "hold", "stop"]
Rung = Literal["observe", "warn", "delay", "reuse", "chance", "block", "finish", "ask", "judge", "stop"]
Ending = Literal["finish", "reuse", "delay"]
FindingKind = Annotated[
    str, AfterValidator(_known_kind), WithJsonSchema({"type": "string", "enum": [*KINDS]})
]
"""The detector of a finding."""
FindingKindFilter = Annotated[
    str,
    AfterValidator(lambda kind: _known_kind(kind) if kind else kind),
    WithJsonSchema({"type": "string", "enum": ["", *KINDS]}),
]
"""A detector, or nothing for all of them."""
Row = TypeVar("Row")
Documented = TypeVar("Documented", bound=Schema)


class StrictSchema(Schema):
    """A request body that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


def with_fields_of(row: Any) -> Callable[[type[Documented]], type[Documented]]:
    """Return a decorator that puts the fields of the documents of a kind of rows before those of a schema."""

    def complete(own: type[Documented]) -> type[Documented]:
        more = {name: (field.annotation, field) for name, field in own.model_fields.items()}
        found: type[Documented] = _schema(own.__name__, own.__doc__, {**_described(row), **more})
        return found

    return complete


def _schema(name: str, words: str | None, fields: dict[str, Any]) -> Any:
    return create_model(name, __base__=Schema, __doc__=words, **fields)


def _described(row: Any) -> dict[str, Any]:
    return {
        field.name: (_documented(field.shown_type), Field(description=field.shown.description))
        for field in shown_fields(row)
    }


@cache
def _documented(kind: Any) -> Any:
    """Return the type that documents have for one of rows."""
    if is_described(kind):
        return _schema(f"{kind.__name__.removesuffix('Row')}Schema", kind.__doc__, _described(kind))
    parts = [_documented(part) for part in get_args(kind) if part not in (Ellipsis, NoneType)]
    if get_origin(kind) is tuple:
        return GenericAlias(list, parts[0])
    optional: Any = Optional
    return optional[parts[0]] if NoneType in get_args(kind) else float if kind is Decimal else kind


class PageQuerySchema(Schema):
    """Which page of a list."""

    cursor: Cursor = Field("", description="`next_cursor` of the previous page. Empty for the first page.")
    limit: int = Field(50, ge=1, le=500, description="Rows per page.")


class FileQuerySchema(Schema):
    """How a list is exported."""

    format: Literal["jsonl", "csv"] = Field("jsonl", description="File format.")
    limit: int = Field(
        exports.MAX_ROWS, ge=1, le=exports.MAX_ROWS, description="Maximum number of rows in the file."
    )


class FilterSchema(Schema):
    """A filter."""

    q: FilterText = Field(
        "", description="Filter in the filter language, as in `agent:browser -tool:bash cost:>0.1`."
    )


class FilterQuerySchema(FilterSchema):
    """A filter and an order."""

    sort: ShortText = Field(
        "", description="Column to sort by, with a leading minus for descending order. Empty: newest first."
    )


class ProblemSchema(Schema):
    """A problem document (RFC 9457) with a stable code."""

    type: str = Field(description="Link to the documentation of the code.")
    title: str = Field(description="The phrase of the HTTP status.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="Stable code in snake case.")
    detail: str = Field(description="What is wrong and what is allowed, in one or two sentences.")
    request_id: str = Field(description="Id of the request, as in the log and in `X-Request-ID`.")
    path: str = Field("", description="Path of the field at fault, as in `calls[0].tool`.")
    errors: list[dict[str, str]] = Field(
        [], description="`path`, `code` and `hint` of each error, if there are several."
    )


class PageSchema(Schema, Generic[Row]):
    """A page of a list."""

    model_config = ConfigDict(json_schema_extra={"description": "A page of a list."})

    items: list[Row] = Field(description="The rows of this page.")
    next_cursor: str | None = Field(description="Opaque cursor of the next page. Null on the last page.")
    is_partial: bool = Field(
        False,
        description="Whether rows may be missing, because contents could not all be searched for the words of the "
        "filter in the time that a list has. `GET /search` continues.",
    )


class SettingSchema(Schema):
    """The value of a setting and its source."""

    value: Any = Field(description="The effective value.")
    source: str = Field(
        description="Where the value comes from, as in `environment` or `model:openai/gpt-5`."
    )


class FindingSchema(Schema):
    """What a detector found."""

    kind: FindingKind = Field(description="The detector.")
    count: int = Field(description="How often the call, lap or unit was counted.")
    limit: int = Field(
        description="The count at which the detector fires; of a budget, what it allows: of rounds and calls, one less "
        "than the setting."
    )
    window_seconds: float | None = Field(
        description="Length of the time window in seconds, if the detector has one."
    )
    window_calls: int | None = Field(description="Length of the window in calls, if the detector has one.")
    confidence: float = Field(description="Confidence of the finding, 0 to 1.")
    results: str = Field(
        description="What the calls returned: `equal`, `alike`, `changing`, `errors`, `empty` or `unknown`."
    )
    period: int = Field(description="Number of calls in one lap of the loop. 1 for a single repeated call.")
    tool: str = Field("", description="Tool of the call at which it was found.")
    pattern: list[str] = Field(
        [], description="Tools of one lap of a cycle, in order. Empty for other detectors."
    )
    laps: int = Field(0, description="Laps of a cycle so far. 0 for other detectors.")
