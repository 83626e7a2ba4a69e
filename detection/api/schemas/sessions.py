"""Sessions, their calls, and what is done to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from detection.api.schemas.common import Decision, Finding, Setting, Strict, Word
from detection.api.schemas.incidents import IncidentOut


class SessionQuery(Schema):
    """Filters of the session list."""

    q: Word = Field("", description="Text within the name, agent, model or last tool.")
    state: Literal["", "running", "looping", "held", "stopped", "ended", "idle"] = ""
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


class LimitNotice(Schema):
    """A limit of a budget that a session has used most of. Operators were told once; the agent was not."""

    unit: str = Field(description="What the limit counts: rounds, calls, seconds, tokens or US dollars.")
    used: float
    limit: float
    seq: int = Field(description="The call that came so close.")
    tool: str
    at: datetime


class SessionDetail(SessionOut):
    """A session with its settings and what was set aside."""

    policy_values: dict[str, Any] = Field(description="The session's own tier.")
    policy: dict[str, Setting] = Field(description="What holds, each with its source.")
    quarantined: list[dict[str, Any]]
    limit_notices: list[LimitNotice] = Field(description="Limits that are nearly used, the first one first.")
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
