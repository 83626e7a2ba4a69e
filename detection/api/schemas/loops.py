"""Schemas of loops and their actions."""

from __future__ import annotations

from datetime import datetime
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

_UNTIL = "When it comes back, at most 90 days ahead."
_UNTIL_WORSE = (
    "Bring it back when more new incidents open within 24 hours than in the 24 hours before (at least one)."
)
_FINE_REASON = "Why it is fine."
_ASSIGNEE = "User name of a member. Empty for no one."
_LATER_REASON = "Why it is put off."


class LoopFiltersSchema(FilterQuerySchema):
    """Filters of loops."""

    status: Literal["", "open", "later", "later_but_firing", "fine", "done"] = Field(
        "", description="Status. `later_but_firing` selects loops that were detected since they were put off."
    )
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

    trend_by_day: list[int] = Field(
        description="Incidents opened in each of the last 30 days (24 hours each, until now), oldest first."
    )
    shared: dict[str, SharedFactSchema] = Field(
        description="By field: `tool`, `agent`, `model`, `backend`, `calls_digest` (the same arguments) and `session`."
    )
    newest_incidents: list[IncidentSchema] = Field(
        description="Its newest incidents. `GET /incidents?loop_id=…` lists all of them."
    )
    activity: list[ActivitySchema] = Field(description="Activity, oldest first.")


class LoopChangesQuerySchema(Schema):
    """Since when."""

    since: Timestamp | None = Field(None, description="Since when. 24 hours ago by default.")


class ChangedLoopSchema(LoopSchema):
    """A loop that changed."""

    change: Literal["new", "returned", "worse"] = Field(
        description="`worse`: more incidents opened within 24 hours than in the 24 hours before."
    )


class LoopChangesSchema(Schema):
    """Loops that changed."""

    since: datetime = Field(description="Since when.")
    items: list[ChangedLoopSchema] = Field(description="The loops, those with the newest incident first.")


class LoopCountsSchema(Schema):
    """Loops by status."""

    all: int = Field(description="All loops.")
    open: int = Field(description="Loops with an open incident.")
    later: int = Field(description="Loops that are put off.")
    later_but_firing: int = Field(description="Those of them that were detected since.")
    fine: int = Field(description="Loops that a person called fine.")
    done: int = Field(description="Loops that a person closed, or that ended by themselves.")
    looping_sessions: int = Field(
        description="Sessions with a call of a loop in the last 2 minutes, whatever the filters."
    )


class NoteRequestSchema(StrictSchema):
    """An optional note."""

    note: Note = Field("", description="Note for the activity.")


class CommentRequestSchema(StrictSchema):
    """A comment."""

    note: Note = Field(min_length=1, description="Text of the comment.")


class AssignRequestSchema(StrictSchema):
    """The person responsible for a loop."""

    assignee: Name200 = Field(description=_ASSIGNEE)


class LaterRequestSchema(StrictSchema):
    """Until when a loop is put off. `until`, `hours` or `until_worse` is required."""

    until: Timestamp | None = Field(None, description=_UNTIL)
    hours: float | None = Field(None, gt=0, le=2160, description="Hours until then, instead of `until`.")
    until_worse: bool = Field(False, description=_UNTIL_WORSE)
    reason: Reason = Field("", description=_LATER_REASON)


LabelReasonName = Literal["", "poll", "volatile_argument", "honest_repetition", "broken_tool", "other"]
Where = Literal["run", "tool", "agent", "model", "everywhere"]


class FineQuerySchema(Schema):
    """Why a loop is fine, which the choices depend on."""

    reason: LabelReasonName = Field("", description=_FINE_REASON)


class FineChoiceSchema(Schema):
    """Where a loop may be fine."""

    where: Where = Field(description="Only this run, this tool, this agent, this model, or everywhere.")
    words: str = Field(description="What the exception does.")
    settings: list[str] = Field(description="The settings that it sets, where the words do not name them.")
    change: dict[str, object] = Field(description="The change of the settings, as `POST /what-if` takes it.")


class FineRequestSchema(StrictSchema):
    """Why a loop is fine, and where."""

    where: Literal["", Where] = Field(
        "",
        description="Where the exception applies. Empty for the label alone, without an exception. For `run`, only "
        "that incident is labelled.",
    )
    run: Annotated[str, StringConstraints(max_length=64)] = Field(
        "", description="Id of the incident that the exception is made from. Empty for the newest one."
    )
    reason: LabelReasonName = Field("", description=_FINE_REASON)
    note: Note = Field("", description="Note for the activity, and the reason of the exception.")
    expires_at: Timestamp | None = Field(
        None, description="End of the exception. Null for none; one for a run ends with the session."
    )
    siblings: bool = Field(
        True,
        description="Whether all incidents of the loop get the label. Otherwise only the exception is saved.",
    )


class ConfirmRequestSchema(NoteRequestSchema):
    """An optional note, and the one incident to confirm."""

    run: ShortText = Field("", description="Id of the only incident to confirm. Empty for all.")


class BulkLoopActionRequestSchema(StrictSchema):
    """One action on several loops."""

    ids: list[Annotated[str, StringConstraints(max_length=64)]] = Field(
        min_length=1, max_length=500, description="Ids of the loops."
    )
    action: Literal["assign", "done", "later", "fine", "confirm", "reopen", "undo"] = Field(
        description="The action."
    )
    assignee: Name200 = Field("", description=f"For `assign`. {_ASSIGNEE}")
    until: Timestamp | None = Field(None, description=f"For `later`. {_UNTIL}")
    until_worse: bool = Field(False, description=f"For `later`. {_UNTIL_WORSE}")
    reason: Reason = Field("", description=f"For `later` and `fine`. {_LATER_REASON}")
    where: Literal["", Where] = Field(
        "", description="For `fine`. Where the exception applies; empty for none."
    )
    expires_at: Timestamp | None = Field(None, description="For `fine`. End of the exception.")
    note: Note = Field("", description="Note for the activity, for `done`, `fine` and `confirm`.")


class BulkLoopActionResultSchema(Schema):
    """The outcome of the action on each loop."""

    outcome: dict[str, str] = Field(description="`done` or an error code, by loop id.")
