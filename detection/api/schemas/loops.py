"""Schemas of loops and their actions."""

from __future__ import annotations

from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import (
    FileQuerySchema,
    FilterQuerySchema,
    FindingKindFilter,
    Name200,
    Note,
    PageQuerySchema,
    Reason,
    ShortText,
    StrictSchema,
    Timestamp,
    with_fields_of,
)
from detection.api.schemas.incidents import ActivitySchema, IncidentSchema
from detection.selectors.loops import LoopRow, SharedFact

_UNTIL = "End of the mute, at most 90 days ahead."
_UNTIL_WORSE = (
    "End the mute when more new incidents open within 24 hours than in the 24 hours before it (at least one)."
)
_LABEL = "`true_loop` or `false_alarm`. Empty removes the labels."
_ASSIGNEE = "User name of a member. Empty for no one."
_MUTE_REASON = "Why notifications are suppressed."


class LoopFiltersSchema(FilterQuerySchema):
    """Filters of loops."""

    state: Literal[
        "", "open", "acknowledged", "snoozed", "muted", "muted_but_firing", "ended", "resolved", "not_a_loop"
    ] = Field("", description="State. `muted_but_firing` selects muted loops that were detected since.")
    kind: FindingKindFilter = Field("", description="Detector of an incident.")
    tool: ShortText = Field("", description="Tool of an incident.")
    agent: ShortText = Field("", description="Agent of an incident.")
    backend: ShortText = Field("", description="LLM backend of an incident.")
    model: ShortText = Field("", description="Model of an incident.")
    session: ShortText = Field("", description="Your name for the session of an incident.")
    assignee: ShortText = Field("", description="User name of the person it is assigned to.")


class LoopQuerySchema(LoopFiltersSchema, PageQuerySchema):
    """Filters of the list of loops."""


class LoopExportQuerySchema(FileQuerySchema, LoopFiltersSchema):
    """Filters of the export of loops."""


@with_fields_of(LoopRow)
class LoopSchema(Schema):
    """The same loop across sessions and agents. Figures count the incidents that match the filters."""

    links: dict[str, str] = Field(description="Console page of the loop.")


@with_fields_of(SharedFact)
class SharedFactSchema(Schema):
    """Distribution of the incidents over the values of a field."""


class LoopDetailSchema(LoopSchema):
    """A loop with what its incidents share, its newest incidents and its activity."""

    shared: dict[str, SharedFactSchema] = Field(
        description="By field: `tool`, `agent`, `model`, `backend`, `loop` (the same arguments) and `session`."
    )
    newest_incidents: list[IncidentSchema] = Field(
        description="Its newest incidents. `GET /incidents?loop_id=…` lists all of them."
    )
    activity: list[ActivitySchema] = Field(description="Activity, oldest first.")


class AssignRequestSchema(StrictSchema):
    """The person responsible for a loop."""

    assignee: Name200 = Field(description=_ASSIGNEE)


class LabelLoopRequestSchema(StrictSchema):
    """A label of a loop and all its incidents."""

    label: Literal["true_loop", "false_alarm", ""] = Field(description=_LABEL)
    note: Note = Field("", description="Note for the activity.")


class MuteRequestSchema(StrictSchema):
    """When a mute ends. `until`, `hours` or `until_worse` is required."""

    until: Timestamp | None = Field(None, description=_UNTIL)
    hours: float | None = Field(None, gt=0, le=2160, description="Length of the mute, instead of `until`.")
    until_worse: bool = Field(False, description=_UNTIL_WORSE)
    reason: Reason = Field("", description=_MUTE_REASON)


class BulkLoopActionRequestSchema(StrictSchema):
    """One action on several loops."""

    ids: list[Annotated[str, StringConstraints(max_length=64)]] = Field(
        min_length=1, max_length=500, description="Ids of the loops."
    )
    action: Literal["assign", "acknowledge", "resolve", "label", "mute", "unmute", "undo"] = Field(
        description="The action."
    )
    assignee: Name200 = Field("", description=f"For `assign`. {_ASSIGNEE}")
    until: Timestamp | None = Field(None, description=f"For `mute`. {_UNTIL}")
    until_worse: bool = Field(False, description=f"For `mute`. {_UNTIL_WORSE}")
    reason: Reason = Field("", description=f"For `mute`. {_MUTE_REASON}")
    label: Literal["true_loop", "false_alarm", ""] = Field("", description=f"For `label`. {_LABEL}")
    note: Note = Field("", description="Note for the activity, for `acknowledge`, `resolve` and `label`.")


class BulkLoopActionResultSchema(Schema):
    """The outcome of the action on each loop."""

    outcome: dict[str, str] = Field(description="`done` or an error code, by loop id.")
