"""The shapes of bodies, queries and answers: what the OpenAPI tells, and what the routes of settings check.

The bodies of events and guard are described here and read by `parsing`; a test holds the two together.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from ninja import Field, Schema
from pydantic import AfterValidator, AwareDatetime, ConfigDict, StringConstraints

from detection.api import parsing


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("Only printable characters.")
    return text


def _storable(moment: datetime) -> datetime:
    if not parsing.EARLIEST_YEAR <= moment.year <= parsing.LATEST_YEAR:
        raise ValueError(f"Only the years {parsing.EARLIEST_YEAR} to {parsing.LATEST_YEAR}.")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_storable)]
"""A time with an offset, in a year that the database and our arithmetic can hold in any zone."""
Word = Annotated[str, StringConstraints(max_length=256), AfterValidator(_printable)]
Reason = Annotated[str, StringConstraints(max_length=300), AfterValidator(_printable)]
Note = Annotated[str, StringConstraints(max_length=1000)]
Name128 = Annotated[str, StringConstraints(max_length=128)]
Name200 = Annotated[str, StringConstraints(max_length=200)]
Name256 = Annotated[str, StringConstraints(max_length=256)]
EventType = Literal["call", "result", "message", "end"]
Decision = Literal["allow", "warn", "block", "hold", "stop"]
Status = Literal["open", "acknowledged", "snoozed", "resolved"]
Kind = Literal["repeat", "cycle", "similar", "outcome", "stagnation", "budget"]
ToolClass = Literal["", "other", "read", "change", "poll", "wait", "message", "fallible", "exempt"]
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


# --- events and guard


class Usage(Schema):
    """Tokens and cost of the model response that issued the call."""

    input_tokens: int = Field(0, ge=0, le=parsing.MAX_TOKENS)
    output_tokens: int = Field(0, ge=0, le=parsing.MAX_TOKENS)
    cost_usd: float = Field(0, ge=0, le=parsing.MAX_COST_USD)


class EventIn(Schema):
    """One call, result, message or end."""

    type: EventType
    session: Name256 = Field(min_length=1, description="The client's name for the conversation.")
    id: Name256 | None = Field(None, description="Idempotency key within the project.")
    run: Name256 | None = None
    round: Name256 | None = Field(
        None, description="Id of the model response; calls of one response share it."
    )
    call_id: Name256 | None = Field(None, description="Of a call, and of the result that belongs to it.")
    tool: Name128 | None = Field(None, description="Needed for calls.")
    arguments: dict[str, Any] | str | None = Field(
        None, description="The object, or the text that the model wrote."
    )
    content: Any = Field(
        None, description="A result's or message's text; anything else is kept as JSON text."
    )
    is_error: bool | None = None
    occurred_at: datetime | None = Field(None, description="ISO 8601 with offset; shown, never counted with.")
    backend: Name128 | None = None
    model: Name200 | None = None
    agent: Name128 | None = None
    parent_session: Name256 | None = None
    usage: Usage | None = None
    outcome: Literal["completed", "failed", "cancelled"] | None = Field(None, description="Of an end.")


class EventsIn(Schema):
    """A batch."""

    events: list[EventIn] = Field(min_length=1, max_length=parsing.MAX_EVENTS)


class Altered(Schema):
    """An event that was stored with visible marks in the place of what cannot be kept."""

    index: int
    marks: list[str]


class Rejected(Schema):
    """An event that was not stored."""

    index: int
    code: str
    path: str = Field(description="Within the event.")
    hint: str


class EventsOut(Schema):
    """What became of a batch; positions refer to the request."""

    accepted: int
    duplicate: int
    altered: list[Altered]
    rejected: list[Rejected]
    request_id: str
    links: dict[str, Any]


class GuardResult(Schema):
    """What an earlier call brought."""

    call_id: Name256 = Field(min_length=1)
    content: Any = None
    is_error: bool | None = None
    occurred_at: datetime | None = None


class GuardCall(Schema):
    """A call that the agent wants to make."""

    tool: Name128 = Field(min_length=1)
    call_id: Name256 | None = None
    arguments: dict[str, Any] | str | None = None
    round: Name256 | None = None
    usage: Usage | None = None
    occurred_at: datetime | None = None


class GuardIn(Schema):
    """Results since the last request, and the calls to judge; at least one of either."""

    session: Name256 = Field(min_length=1)
    run: Name256 | None = None
    round: Name256 | None = None
    backend: Name128 | None = None
    model: Name200 | None = None
    agent: Name128 | None = None
    parent_session: Name256 | None = None
    results: list[GuardResult] = []
    calls: list[GuardCall] = []


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


class Setting(Schema):
    """A value and the tier that it comes from."""

    value: Any
    source: str


class HeldOn(Schema):
    """What a held call waits on."""

    id: str
    deadline: datetime = Field(description="When the unattended default decides.")
    wait_url: str = Field(description="Asked with the same key, it answers as soon as there is an answer.")


class Verdict(Schema):
    """The answer for one call."""

    call_id: str
    decision: Decision
    message: str
    incident: str | None
    finding: Finding | None
    policy: dict[str, Setting]
    duplicate: bool
    question: HeldOn | None = Field(None, description="Of a held call.")
    rendered: dict[str, Any] | str | None = Field(
        None, description="With ?render: the message in that wire shape."
    )


class GuardAltered(Schema):
    """What was stored with visible marks."""

    path: str
    marks: list[str]


class GuardOut(Schema):
    """The answers in the order of the calls; `decision` is the strictest."""

    session: str
    decision: Decision
    verdicts: list[Verdict]
    notices: list[Verdict] = Field(description="What the results sent along brought to light.")
    altered: list[GuardAltered] = []
    request_id: str
    links: dict[str, str]


# --- sessions


class SessionQuery(Schema):
    """Filters of the session list."""

    q: Word = Field("", description="Text within the name, agent, model or last tool.")
    state: Literal["", "running", "looping", "waiting", "stopped", "ended", "idle"] = ""
    agent: Word = ""
    backend: Word = ""
    model: Word = ""
    tool: Word = Field("", description="The tool that was called last.")
    demo: bool | None = None
    cursor: Word = ""
    limit: int = Field(50, ge=1, le=500)


class PageQuery(Schema):
    """Where a list goes on."""

    cursor: Word = ""
    limit: int = Field(100, ge=1, le=500)


class Meter(Schema):
    """How close a session is to a finding."""

    kind: str
    count: int
    limit: int


class Stopped(Schema):
    """Who stopped a session."""

    at: datetime
    by: str
    reason: str


class SessionOut(Schema):
    """A session."""

    session: str
    state: str
    outcome: str | None
    agent: str
    backend: str
    model: str
    parent_session: str | None
    is_demo: bool
    started_at: datetime
    last_event_at: datetime
    ended_at: datetime | None
    calls: int
    blocked: int
    tokens: int
    cost_usd: float
    last_tool: str
    meter: Meter | None
    pending_events: int = Field(description="Events that were not evaluated yet.")
    stopped: Stopped | None
    links: dict[str, str]


class SessionDetail(SessionOut):
    """A session with its settings and what was set aside."""

    policy_values: dict[str, Any] = Field(description="The session's own tier.")
    policy: dict[str, Setting] = Field(description="What holds, each with its source.")
    parked: list[dict[str, Any]]
    incidents: list[IncidentOut]


class ResultOut(Schema):
    """What a tool answered."""

    seq: int
    content: str | None = Field(description="At most 16,384 characters.")
    content_length: int
    is_error: bool | None
    received_at: datetime
    altered: list[str]


class CallOut(Schema):
    """A call with its verdict and, once there is one, its result."""

    seq: int
    call_id: str
    tool: str
    arguments: str | None
    round: str | None
    run: str | None
    backend: str
    model: str
    agent: str
    tokens: int
    cost_usd: float
    occurred_at: datetime | None
    received_at: datetime
    altered: list[str]
    key: str = Field(
        description="Equal for calls that detection holds to be the same; empty until evaluated."
    )
    decision: Decision
    message: str
    incident: str | None
    finding: Finding | None
    result: ResultOut | None


class CommandIn(Strict):
    """In-chat commands."""

    text: str = Field(max_length=4000, description="As in !/set(tool-loop-max-repeats=6)")


class CommandOut(Schema):
    """One line a command, and what holds now."""

    lines: list[str]
    changed: bool
    policy_values: dict[str, Any]


class StopIn(Strict):
    """Why a session is stopped; the agent's user gets to read it."""

    reason: str = Field("", max_length=300)


# --- incidents


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
    was_asked: bool
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


# --- settings


class TierIn(Strict):
    """Settings of a tier. What is left out is inherited; no settings at all remove the tier."""

    values: dict[str, Any]
    note: str = Field("", max_length=300, description="Why.")


class TierOut(Schema):
    """A stored tier."""

    scope: Literal["server", "project", "backend", "model"]
    backend: str | None
    model: str | None
    source: str
    values: dict[str, Any]
    note: str
    updated_at: datetime | None


class ToolRuleIn(Strict):
    """What is special about the tools that a pattern matches."""

    tool_class: ToolClass | None = Field(None, description="Empty: the shipped class.")
    ignore_arguments: list[Name256] = Field([], max_length=50)
    volatile_result_fields: list[Name256] = Field([], max_length=50)
    values: dict[str, Any] = {}
    exempt: bool = False
    note: str = Field("", max_length=300)


class ToolRuleOut(Schema):
    """A stored tool rule."""

    pattern: str
    tool_class: str | None
    ignore_arguments: list[str]
    volatile_result_fields: list[str]
    values: dict[str, Any]
    exempt: bool
    note: str
    updated_at: datetime


class PolicyQuery(Schema):
    """Where the settings are to hold."""

    backend: Word = ""
    model: Word = ""
    tool: Word = ""
    session: Word = ""


class PolicyOut(Schema):
    """What holds, each setting with its source."""

    backend: str
    model: str
    tool: str
    session: str | None
    policy: dict[str, Setting]


SessionDetail.model_rebuild()
