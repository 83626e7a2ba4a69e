"""Incidents, and what is done to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import Moment, Note, Strict, Word

Status = Literal["open", "acknowledged", "snoozed", "resolved"]


class IncidentQuery(Schema):
    """Filters of the incident list."""

    q: Word = Field("", description="Text within the tool, session or agent.")
    status: Literal["", "open", "acknowledged", "snoozed", "resolved"] = ""
    kind: Literal["", "repeat", "cycle", "similar", "outcome", "stagnation", "budget"] = ""
    tool: Word = ""
    agent: Word = ""
    backend: Word = ""
    model: Word = ""
    label: Literal["", "true_loop", "false_alarm", "none"] = ""
    session: Word = ""
    cursor: Word = ""
    limit: int = Field(50, ge=1, le=500)


class ExportQuery(IncidentQuery):
    """The same filters; `limit` bounds the whole export."""

    limit: int = Field(10_000, ge=1, le=10_000)


class IncidentOut(Schema):
    """An incident."""

    id: str
    session: str
    agent: str
    backend: str
    model: str
    is_demo: bool
    loop: str = Field(description="Equal for the same loop in other sessions.")
    kind: str
    tool: str
    count: int
    limit: int
    window_seconds: float | None
    confidence: float
    decision: str
    detections: int
    was_guarded: bool
    calls_blocked: int
    calls_in_loop: int
    cost_usd: float
    first_seq: int
    last_seq: int
    status: Status
    label: str | None
    is_active: bool
    recovered: bool | None
    acknowledged_by: str | None
    snoozed_until: datetime | None
    snoozed_until_worse: bool
    opened_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None
    resolved_at: datetime | None
    links: dict[str, str]


class Activity(Schema):
    """What somebody did."""

    at: datetime
    actor: str
    action: str
    note: str


class IncidentDetail(IncidentOut):
    """An incident with its evidence and settings as they were."""

    evidence: dict[str, Any]
    policy: dict[str, Any]
    activity: list[Activity]
    neighbours: list[IncidentOut] = Field(description="The same loop in other sessions.")


class NoteIn(Strict):
    """A remark."""

    note: Note = ""


class CommentIn(Strict):
    """A remark that is the point of the request."""

    note: Note = Field(min_length=1)


class SnoozeIn(Strict):
    """Until when; nothing is put aside for ever."""

    until: Moment | None = Field(None, description="At most 90 days ahead.")
    hours: float | None = Field(None, gt=0, le=2160, description="Instead of until.")
    until_worse: bool = Field(False, description="Wake when the loop reaches a stricter reaction.")


class LabelIn(Strict):
    """What the incident was."""

    label: Literal["true_loop", "false_alarm", ""] = Field(description="Empty takes the label back.")
    note: Note = ""


class BulkIn(Strict):
    """One thing for several incidents."""

    ids: list[Annotated[str, StringConstraints(max_length=64)]] = Field(min_length=1, max_length=500)
    action: Literal["acknowledge", "resolve", "reopen", "snooze", "label", "undo"]
    until: Moment | None = None
    until_worse: bool = False
    label: Literal["true_loop", "false_alarm", ""] = ""


class BulkOut(Schema):
    """Per id `done`, or the code of what stood against it."""

    outcome: dict[str, str]
