"""Schemas of the project of a key."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from detection.api.schemas.common import StrictSchema


class ProjectRequestSchema(StrictSchema):
    """Changes to a project; omitted and null values are unchanged."""

    name: str | None = Field(None, max_length=120, description="Name of the project.")
    retention_days: int | None = Field(
        None, ge=7, le=3650, description="Days after which sessions are deleted, with their calls."
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
    is_archived: bool | None = Field(
        None, description="Whether events, calls and imports are rejected with `project_archived`."
    )


class ProjectSchema(Schema):
    """The project of the key."""

    slug: str = Field(description="Name in URLs.")
    name: str = Field(description="Name of the project.")
    retention_days: int = Field(description="Days after which sessions are deleted, with their calls.")
    stores_payloads: bool = Field(description="Whether arguments and results are stored.")
    is_searchable: bool = Field(
        description="Whether an index is kept that arguments, results and messages are searched with."
    )
    redacted_names: list[str] = Field(description="Names of additional fields whose values are redacted.")
    redaction_patterns: list[str] = Field(description="RE2 patterns whose matches are redacted too.")
    requires_second_factor: bool = Field(
        description="Whether members need a second factor to see the project in the console."
    )
    archived_at: datetime | None = Field(description="When it was archived.")
    created_at: datetime = Field(description="When it was created.")
