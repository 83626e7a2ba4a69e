"""Schemas of the project of a key."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from detection.api.schemas.common import StrictSchema

SpikeActionName = Literal["observe", "sample", "reject"]


class ProjectRequestSchema(StrictSchema):
    """Changes to a project; omitted and null values are unchanged."""

    name: str | None = Field(None, max_length=120, description="Name of the project.")
    retention_days: int | None = Field(
        None, ge=7, le=3650, description="Days after which sessions are deleted, with their calls."
    )
    pack_after_days: int | None = Field(
        None,
        ge=0,
        le=3650,
        description="Days after their last event after which the calls of sessions are stored packed: 0 for never, or 7"
        " and more.",
    )
    stores_payloads: bool | None = Field(
        None, description="Whether arguments and results are stored; otherwise only their digests."
    )
    is_searchable: bool | None = Field(
        None, description="Whether an index is kept that arguments, results and messages are searched with."
    )
    redacted_names: list[str] | None = Field(
        None, max_length=50, description="Names of additional fields whose values are redacted."
    )
    redaction_patterns: list[str] | None = Field(
        None,
        max_length=20,
        description="RE2 patterns. Matches in new events are redacted.",
    )
    requires_second_factor: bool | None = Field(
        None, description="Whether members need a second factor to see the project in the console."
    )
    spike_action: SpikeActionName | None = Field(
        None,
        description="What happens to reported events above the limit: all are stored, one session in ten is, or the"
        " requests are answered with 429 `spike`.",
    )
    spike_limit: int | None = Field(
        None,
        ge=0,
        le=100_000_000,
        description="Reported events in a minute that are no spike; 0 for ten times the usual rate.",
    )
    is_archived: bool | None = Field(
        None, description="Whether events, calls and imports are rejected with `project_archived`."
    )


class PackedSchema(Schema):
    """How much of a project is packed; sizes are those of rows and packed columns, without indexes."""

    sessions: int = Field(description="Number of sessions.")
    events: int = Field(description="Number of their events.")
    row_bytes: int = Field(description="Size of the events before, as rows.")
    packed_bytes: int = Field(description="Their size now.")


class ProjectSchema(Schema):
    """The project of the key."""

    slug: str = Field(description="Name in URLs.")
    name: str = Field(description="Name of the project.")
    retention_days: int = Field(description="Days after which sessions are deleted, with their calls.")
    pack_after_days: int = Field(description="Days after which calls are stored packed; 0 for never.")
    packed: PackedSchema = Field(description="What is packed.")
    stores_payloads: bool = Field(description="Whether arguments and results are stored.")
    is_searchable: bool = Field(
        description="Whether an index is kept that arguments, results and messages are searched with."
    )
    redacted_names: list[str] = Field(description="Names of additional fields whose values are redacted.")
    redaction_patterns: list[str] = Field(description="RE2 patterns whose matches are redacted too.")
    requires_second_factor: bool = Field(
        description="Whether members need a second factor to see the project in the console."
    )
    spike_action: SpikeActionName = Field(description="What happens to reported events above the limit.")
    spike_limit: int = Field(
        description="Reported events in a minute that are no spike; 0 for ten times the usual rate."
    )
    archived_at: datetime | None = Field(description="When it was archived.")
    created_at: datetime = Field(description="When it was created.")


class ReportedEventsSchema(Schema):
    """How many events the project reports, and what became of those above its limit in the last 24 hours."""

    usual_per_minute: float | None = Field(
        description="Events a minute in the busiest hour of a usual day; null in the first days."
    )
    limit_per_minute: float | None = Field(description="From here on it is a spike; null for no limit.")
    is_spiking: bool = Field(description="Whether the limit was exceeded in the last two minutes.")
    spiked_at: datetime | None = Field(description="When it was last exceeded.")
    rejected_requests: int = Field(description="Requests that were answered with 429 `spike`.")
    sampled_events: int = Field(description="Events that were not stored, of sessions outside of the sample.")
