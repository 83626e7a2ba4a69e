"""Schemas of incidents, and of exceptions that are made from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema

from detection.api.schemas.common import (
    FileQuerySchema,
    FilterQuerySchema,
    FindingKindFilter,
    Name256,
    PageQuerySchema,
    Reason,
    ShortText,
    StrictSchema,
    with_fields_of,
)
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.row_fields import Shown


class IncidentFiltersSchema(FilterQuerySchema):
    """Filters of incidents."""

    status: Literal["", "open", "ended", "done"] = Field("", description="Status.")
    kind: FindingKindFilter = Field("", description="Detector.")
    tool: ShortText = Field("", description="Tool.")
    agent: ShortText = Field("", description="Agent.")
    backend: ShortText = Field("", description="LLM backend.")
    model: ShortText = Field("", description="Model.")
    label: Literal["", "true_loop", "false_alarm", "none"] = Field(
        "", description="Label. `none` selects incidents without one."
    )
    session: ShortText = Field("", description="Your name for the session.")
    loop_id: ShortText = Field("", description="Id of the loop.")


class IncidentQuerySchema(IncidentFiltersSchema, PageQuerySchema):
    """Filters of the incident list."""


class IncidentExportQuerySchema(FileQuerySchema, IncidentFiltersSchema):
    """Filters of the incident export."""


@with_fields_of(IncidentRow)
class IncidentSchema(Schema):
    """An incident."""

    links: dict[str, str] = Field(description="Console pages of the incident and its session.")


class ActivitySchema(Schema):
    """An entry in the activity of an incident."""

    at: datetime = Field(description="When it was done.")
    actor: str = Field(description="A user name, `key:<id>` or `system`.")
    action: str = Field(description="What was done.")
    note: str = Field(description="The note, or details of the action.")


class IncidentFindingSchema(Schema):
    """What one detector found of a loop."""

    kind: str = Field(description="Detector.")
    tool: str = Field(description="Tool of the call at which it found the loop first.")
    count: int = Field(description="The highest count so far.")
    limit: int = Field(description="The count at which the detector fires.")
    window_seconds: float | None = Field(description="Length of the time window in seconds, if any.")
    confidence: float = Field(description="Confidence of the finding, 0 to 1.")
    detections: int = Field(description="How often it found the loop.")
    decision: str = Field(description="The strictest decision that it led to.")
    first_seq: int = Field(description="Sequence number of the first event that it found.")
    last_seq: int = Field(description="Sequence number of the event at which it found the loop last.")
    last_call_number: int = Field(
        description="Number of the call in the session at which it found the loop last."
    )


class IncidentDetailSchema(IncidentSchema):
    """An incident with its evidence, settings and activity."""

    pattern: list[str] = Field(
        description="Tools of one lap of a cycle, in order. Empty for other detectors."
    )
    laps: int = Field(description="Laps of a cycle so far. 0 for other detectors.")
    detection_number: int = Field(
        description="Number of the latest detection that the ladder reacted to: of this "
        "loop or, with `escalation_scope` `session`, in the run. 0 if there was only advice."
    )
    reactions: dict[str, dict[str, int]] = Field(
        description="By rung, how often the agent `changed` course after it, `went_on`, left it to a person (`asked`), "
        "or `ended`."
    )
    evidence: dict[str, Any] = Field(description="Calls and counts that the finding is based on.")
    policy: dict[str, Any] = Field(description="The effective settings when it was opened.")
    activity: list[ActivitySchema] = Field(description="Activity, oldest first.")
    findings: list[IncidentFindingSchema] = Field(
        description="What each detector found of the loop, that which acted first."
    )
    neighbours: list[IncidentSchema] = Field(description="Incidents of the same calls in other sessions.")


class ExceptionOptionSchema(Schema):
    """An exception that an incident suggests."""

    option: Annotated[str, Shown(column="id")] = Field(description="Id of the option, as in `tool:poll`.")
    words: str = Field(description="What it does.")
    is_suggested: bool = Field(description="Whether it fits the reason of the label best.")
    sessions: int = Field(
        description="Number of sessions of the last 30 days that its scope has, among the newest 2,000."
    )
    change: dict[str, Any] = Field(description="The change, as `POST /what-if` takes it.")


class ExceptionRequestSchema(StrictSchema):
    """Which exception to save."""

    option: str = Field(max_length=64, description="Id of an option of `GET /incidents/{id}/exceptions`.")
    arguments: list[Name256] | None = Field(
        None, max_length=20, description="For `tool:ignore`: names of arguments; null for those that vary."
    )
    expires_at: datetime | None = Field(
        None, description="When it expires, at most 365 days ahead. Null: never."
    )
    note: Reason = Field(
        "", description="Reason, recorded in the history. Empty for that of the label “not a loop”."
    )
