"""Schemas of prices and of the traffic through the gateway."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import StrictSchema, Timestamp
from detection.selectors.row_fields import PUBLIC_ID, Shown
from detection.services.gateway.prices import price_version

PriceBackend = Annotated[str, StringConstraints(max_length=64)]
PriceModel = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Usd = Annotated[float, Field(ge=0, le=100_000)]
TrafficBy = Literal["minute", "hour", "day", "backend", "model"]


class RecalculationSchema(Schema):
    """How far the costs of imported calls follow the latest change of a price."""

    requested_at: datetime | None = Field(description="When a price was changed last. Null for never.")
    finished_at: datetime | None = Field(description="When all were recalculated. Null until then.")
    sessions: int = Field(description="Imported sessions whose costs follow from prices.")
    done_sessions: int = Field(description="Of these, recalculated ones.")
    changed_sessions: int = Field(description="Of these, those whose cost has changed.")


class PriceRequestSchema(StrictSchema):
    """Prices of a model, in US dollars per million tokens."""

    backend: PriceBackend = Field("", description="Name of a backend. Empty: all backends.")
    model: PriceModel = Field(description="Name of a model; `*` matches any characters.")
    input_usd: Usd = Field(description="Price of input tokens.")
    cached_input_usd: Usd | None = Field(
        None, description="Price of input tokens read from a cache. Null: same as `input_usd`."
    )
    cache_write_usd: Usd | None = Field(
        None, description="Price of input tokens written to a cache. Null: same as `input_usd`."
    )
    output_usd: Usd = Field(description="Price of output tokens.")


class PriceSchema(PriceRequestSchema):
    """A stored price."""

    id: Annotated[str, PUBLIC_ID] = Field(description="Id of the price.")
    updated_at: datetime = Field(description="When it was last saved.")
    version: Annotated[str, Shown(show=price_version)] = Field(description="For `If-Match`, in quotes.")


class TrafficQuerySchema(Schema):
    """Parameters of the traffic."""

    from_: Timestamp | None = Field(
        None, alias="from", description="Start of the time span; one hour before `to` by default."
    )
    to: Timestamp | None = Field(None, description="End of the time span; now by default.")
    by: TrafficBy = Field("minute", description="What to group by.")
    backend: Annotated[str, StringConstraints(max_length=64)] = Field(
        "", description="Only this backend, by name."
    )


class UpstreamErrorsSchema(Schema):
    """Failed requests to the model server, by kind of error."""

    unreachable: int = Field(description="No connection.")
    timeouts: int = Field(description="No response in time.")
    rate_limited: int = Field(description="Status 429.")
    client_errors: int = Field(description="Any other status from 400 to 499.")
    server_errors: int = Field(description="Status 500 or above.")
    cut: int = Field(description="The response ended early.")
    unreadable: int = Field(description="The response did not follow the protocol.")


class TrafficNumbersSchema(Schema):
    """Counts of requests."""

    requests: int = Field(description="Requests to the model server.")
    errors: UpstreamErrorsSchema = Field(description="Errors of the model server by kind.")
    abandoned: int = Field(description="Requests whose client disconnected before the end of the response.")
    unguarded: int = Field(
        description="Requests of paths that are not guarded, except for lists of models and counts of tokens."
    )
    input_tokens: int = Field(description="Input tokens, including cached ones.")
    cached_tokens: int = Field(description="Input tokens read from a cache.")
    cache_write_tokens: int = Field(description="Input tokens written to a cache.")
    output_tokens: int = Field(description="Output tokens.")
    unpriced_tokens: int = Field(description="Tokens of models without a price.")
    cost_usd: float | None = Field(
        description="Cost of the tokens that have a price, in US dollars. Null if none of them has a price."
    )
    added_ms_p50: Annotated[float | None, Shown(show=lambda row: row.added_ms_at(0.5))] = Field(
        description="Median of the time that LoopGuard added, in milliseconds."
    )
    added_ms_p95: Annotated[float | None, Shown(show=lambda row: row.added_ms_at(0.95))] = Field(
        description="95th percentile of that time, in milliseconds."
    )


class TrafficRowSchema(TrafficNumbersSchema):
    """Counts of a group."""

    key: str = Field(description="Start of the period in UTC, or name of the backend or model.")


class TrafficSchema(Schema):
    """Traffic of a time span."""

    from_: datetime = Field(alias="from", description="Start of the time span.")
    to: datetime = Field(description="End of the time span.")
    by: TrafficBy = Field(description="What the rows are grouped by.")
    total: TrafficNumbersSchema = Field(description="Totals of all groups.")
    items: list[TrafficRowSchema] = Field(description="The groups; at most 3,000.")
