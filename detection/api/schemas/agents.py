"""Events and guard: described here and read by `parsing`; a test holds the two together."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from detection.api import event_parsing
from detection.api.schemas.common import Decision, Finding, Name128, Name200, Name256, Setting

EventType = Literal["call", "result", "message", "end"]


class Usage(Schema):
    """Tokens and cost of the model response that issued the call."""

    input_tokens: int = Field(0, ge=0, le=event_parsing.MAX_TOKENS)
    output_tokens: int = Field(0, ge=0, le=event_parsing.MAX_TOKENS)
    cost_usd: float = Field(0, ge=0, le=event_parsing.MAX_COST_USD)


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

    events: list[EventIn] = Field(min_length=1, max_length=event_parsing.MAX_EVENTS)


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
    approval: HeldOn | None = Field(None, description="Of a held call.")
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
