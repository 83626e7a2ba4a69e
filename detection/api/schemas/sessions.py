"""Schemas of sessions, their calls and their actions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from detection.api.schemas.common import (
    Decision,
    Ending,
    FilterQuerySchema,
    FilterSchema,
    FindingSchema,
    Name128,
    PageQuerySchema,
    PageSchema,
    Rung,
    SettingSchema,
    ShortText,
    StrictSchema,
    with_fields_of,
)
from detection.api.schemas.incidents import IncidentSchema
from detection.models.stored_verdict import StoredVerdict
from detection.selectors.row_fields import Shown, document_of
from detection.selectors.session_rows import SessionRow
from detection.selectors.sessions import CallRow, ResultRow


class SessionFilterSchema(FilterSchema):
    """Filters of sessions, besides their state."""

    agent: ShortText = Field("", description="Agent.")
    backend: ShortText = Field("", description="LLM backend.")
    model: ShortText = Field("", description="Model.")
    tool: ShortText = Field("", description="A tool that it called.")
    demo: bool | None = Field(None, description="True for demo sessions only, false for all others.")


class SessionQuerySchema(PageQuerySchema, FilterQuerySchema, SessionFilterSchema):
    """Filters of the session list."""

    state: Literal[
        "",
        "running",
        "looping",
        "silent",
        "held",
        "stopping",
        "stopped",
        "calls_blocked",
        "stop_unenforced",
        "still_calling",
        "idle",
        "ended",
    ] = Field("", description="State.")


class SessionCountsSchema(Schema):
    """Sessions by state; `looping_now` and `in_loop` count sessions of several states."""

    all: int = Field(description="All sessions.")
    running: int = Field(
        description="Sessions with an event in the last ten minutes and none of the other states."
    )
    looping: int = Field(description="Sessions in a loop with a call of it within two minutes.")
    silent: int = Field(description="Sessions in a loop without a call of it within two minutes.")
    held: int = Field(description="Sessions with a call that waits for approval.")
    stopping: int = Field(description="Sessions that a person stopped, and of which no call was blocked yet.")
    stopped: int = Field(
        description="Sessions of which a call was blocked since a person or detection stopped them."
    )
    calls_blocked: int = Field(
        description="The same where the run cannot be ended, so that calls are blocked one by one."
    )
    stop_unenforced: int = Field(
        description="Sessions that are only watched, so that their stop does nothing."
    )
    still_calling: int = Field(description="Sessions of which a call ran since the stop.")
    idle: int = Field(description="Otherwise running sessions without an event for ten minutes.")
    ended: int = Field(
        description="Sessions whose end was reported, or without an event for an hour while no call is open or held."
    )
    looping_now: int = Field(
        description="Sessions in which the calls of a loop run now: `looping`, and those of `stop_unenforced` and "
        "`still_calling` with a call of a loop within two minutes."
    )
    in_loop: int = Field(description="Sessions in a loop, whatever their state.")
    is_capped: bool = Field(
        description="Whether `all`, `idle` and `ended` count the newest 10,000 sessions only."
    )


class CallQuerySchema(PageQuerySchema):
    """A page of the call list."""

    limit: int = Field(100, ge=1, le=500, description="Calls per page.")


@with_fields_of(SessionRow)
class SessionSchema(Schema):
    """A session."""

    links: dict[str, str] = Field(description="Console page of the session.")


class LimitNoticeSchema(Schema):
    """A limit that a session has nearly reached. People are notified once; the agent is not."""

    kind: str = Field(description="Detector of the limit.")
    unit: str = Field(description="Unit of the limit: rounds, calls, seconds, tokens or US dollars.")
    used: float = Field(description="Amount used.")
    limit: float = Field(description="What the limit allows; of rounds and calls, one less than the setting.")
    seq: int = Field(description="Sequence number of the call that crossed the threshold.")
    call_number: Annotated[int | None, Shown(is_optional=True)] = Field(
        description="Number of that call, from 1. Null if it is no longer stored."
    )
    tool: str = Field(description="Tool of that call.")
    at: datetime = Field(description="When it was recorded.")


class QuarantinedEventSchema(Schema):
    """An event whose evaluation raised an error."""

    seq: int = Field(description="Sequence number of the event.")
    type: str = Field(description="Type of the event.")
    tool: str = Field(description="Tool of a call.")
    error: str = Field(description="The error.")
    traceback: str = Field(description="The end of its traceback, at most 8,000 characters.")
    at: datetime = Field(description="When the evaluation last failed.")


class SessionToolSchema(Schema):
    """Calls of one tool in a session."""

    tool: str = Field(description="Tool.")
    calls: int = Field(description="Number of calls.")
    warned: int = Field(description="Number of calls with a warning.")
    blocked: int = Field(
        description="Number of blocked calls, without held and delayed calls that were allowed in the end."
    )


class KeptSettingSchema(Schema):
    """A setting that does not have the value of the preset."""

    setting: str = Field(description="Name of the setting.")
    value: Any = Field(description="Its value.")
    source: str = Field(description="The scope or tool rule that sets it.")


class SessionDetailSchema(SessionSchema):
    """A session with its settings, incidents and quarantined events."""

    policy_values: dict[str, Any] = Field(description="Overrides of this session.")
    policy: dict[str, SettingSchema] = Field(description="Effective settings, each with its source.")
    kept_over_preset: list[KeptSettingSchema] = Field(
        description="Settings that scopes or tool rules set to other values than the preset; a preset does not "
        "replace them, whichever scope chooses it."
    )
    exempt_tools: list[str] = Field(description="Tools that a person exempted in this session.")
    tools: list[SessionToolSchema] = Field(
        description="The 100 tools with the most calls. "
        "Calls are counted every 15 seconds, with those of `/statistics`."
    )
    quarantined_count: int = Field(description="Number of events whose evaluation raised an error.")
    quarantined: list[QuarantinedEventSchema] = Field(description="The newest 100 of them, newest first.")
    limit_notices: list[LimitNoticeSchema] = Field(
        description="Limits that are nearly reached, oldest first."
    )
    incidents: list[IncidentSchema] = Field(description="The newest incidents of the session.")


def _altered(row: CallRow | ResultRow) -> list[str]:
    return row.altered.split(",") if row.altered else []


def _of_verdict(name: str) -> Shown:
    return Shown(show=lambda row: getattr(row.verdict or StoredVerdict(), name))


class ResultSchema(Schema):
    """The result of a call."""

    seq: int = Field(description="Sequence number of the event.")
    content: str | None = Field(description="Text of the result, at most 16,384 characters.")
    content_length: int = Field(description="Length of the whole text in characters.")
    is_error: bool | None = Field(description="Whether the tool reported an error. Null if unknown.")
    received_at: datetime = Field(description="When it was received.")
    altered: Annotated[list[str], Shown(show=_altered)] = Field(description="What was altered, as in `nul`.")


def _result(row: CallRow) -> Any:
    return row.result and document_of(row.result, ResultSchema)


class CallSchema(Schema):
    """A call with its verdict and its result, if there is one."""

    seq: int = Field(description="Sequence number of the event.")
    number: Annotated[int | None, Shown(column="call_number", is_optional=True)] = Field(
        description="Number of the call, from 1. Null until the call is evaluated."
    )
    call_id: str = Field(description="Id of the call.")
    tool: str = Field(description="Tool.")
    arguments: str | None = Field(description="Arguments as JSON text.")
    cwd: Annotated[str | None, Shown(is_optional=True)] = Field(
        description="The directory in which the call ran, if it was reported and is stored."
    )
    round: Annotated[str | None, Shown(is_optional=True)] = Field(description="Id of the model response.")
    run: Annotated[str | None, Shown(is_optional=True)] = Field(description="Id of the run.")
    backend: str = Field(description="LLM backend.")
    model: str = Field(description="Model.")
    agent: str = Field(description="Agent.")
    tokens: int = Field(description="Tokens used.")
    cost_usd: float = Field(description="Cost in US dollars.")
    occurred_at: datetime | None = Field(description="When it happened, as the client reported it.")
    received_at: datetime = Field(description="When it was received.")
    altered: Annotated[list[str], Shown(show=_altered)] = Field(description="What was altered, as in `nul`.")
    key: Annotated[str, Shown(column="call_key")] = Field(
        description="Identical calls share this key. Empty until the call is evaluated."
    )
    decision: Decision = Field(description="The decision.")
    message: Annotated[str, _of_verdict("message")] = Field(description="The message, if there was one.")
    incident: Annotated[str | None, _of_verdict("incident")] = Field(
        description="Id of the incident, if there is one."
    )
    rung: Annotated[Rung | None, _of_verdict("rung")] = Field(
        description="The reaction of the escalation ladder, if the guard returned one."
    )
    ending: Annotated[Ending | None, _of_verdict("ending")] = Field(
        description="What a blocked call asked of the agent: to `finish`, `reuse` a result or `delay` the call. "
        "Null for any other call."
    )
    detection_number: Annotated[int, _of_verdict("detection_number")] = Field(
        description="Number of the detection, as in the verdict."
    )
    finding: Annotated[FindingSchema | None, _of_verdict("finding")] = Field(
        description="What was detected, if anything."
    )
    result: Annotated[ResultSchema | None, Shown(show=_result)] = Field(
        description="The result, if it was received."
    )


class CommandReplySchema(Schema):
    """The replies to the in-chat commands of a `message` event."""

    seq: int = Field(description="Sequence number of the event.")
    received_at: datetime = Field(description="When it was received.")
    lines: list[str] = Field(description="One reply per command.")


class CallPageSchema(PageSchema[CallSchema]):
    """A page of the call list."""

    model_config = ConfigDict(json_schema_extra={"description": "A page of the call list."})

    command_replies: list[CommandReplySchema] = Field(
        description="Replies to in-chat commands of messages between the calls of this page, oldest first."
    )


class CommandRequestSchema(StrictSchema):
    """In-chat commands."""

    text: str = Field(
        max_length=4000, description="Text with commands, as in `!/set(tool-loop-max-repeats=6)`."
    )


class CommandResultSchema(Schema):
    """The replies to the commands, and the overrides of the session."""

    lines: list[str] = Field(description="One reply per command.")
    changed: bool = Field(description="Whether an override changed.")
    policy_values: dict[str, Any] = Field(description="Overrides of this session.")


class RevokeExemptionSchema(StrictSchema):
    """Which exemption is revoked."""

    tool: Name128 = Field(description="The exempt tool.")


class StopRequestSchema(StrictSchema):
    """Why a session is stopped."""

    reason: str = Field("", max_length=300, description="Reason, shown to the user of the agent.")
