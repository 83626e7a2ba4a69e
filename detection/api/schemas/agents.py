"""Schemas of the events and guard routes. `event_parsing` and `guard_parsing` read the bodies by them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict, StringConstraints

from detection.api.schemas.common import Decision, Ending, FindingSchema, Rung, SettingSchema
from detection.integrations.labels import MAX_LABELS, MAX_TAG_CHARACTERS, MAX_VALUE_CHARACTERS
from detection.integrations.transcripts import MessageShape
from detection.services.events.event_records import (
    DIGEST_CHARACTERS,
    MAX_COST_USD,
    MAX_EVENTS,
    MAX_INTEGER,
    NAME_CHARACTERS,
)
from detection.services.ingestion.message_guard import MAX_MESSAGES

EventTypeName = Literal["call", "result", "message", "end", "compaction", "usage", "heartbeat"]
OutcomeName = Literal["completed", "failed", "cancelled"]
RoleName = Literal["user", "assistant", "system", "program"]


def _name(of: str, default: Any = None, **about: Any) -> Any:
    """Return the field of a name of an event."""
    return Field(default, max_length=NAME_CHARACTERS[of], **about)


_SESSION = "Your name for the session, unique within the project."
_ID = "Idempotency key within the project: an event with a known key is a duplicate."
_CALL_OF_RESULT = (
    "For results: id of the call. Without it, the result belongs to the oldest open call that matches."
)
_CALL_OF_HEARTBEAT = "For heartbeats: id of the call that is still running; required."
_TOOL_OF_RESULT = "For results without `call_id`: the tool of the call."
_ARGUMENTS_OF_RESULT = "For results without `call_id`: the arguments of the call, together with `tool`."
_RUN = "Id of the run within the session."
_ROUND = (
    "Id of the model response. Calls of one response share it. "
    "Without it, the calls of a guard request are one round."
)
_BACKEND = "LLM backend, as in `openai`."
_MODEL = "Model name, as in `gpt-5`."
_AGENT = "Name of the agent."
_PARENT = "Session of the agent that started this one."
_ARGUMENTS = "Arguments of the call, as an object or as the JSON text that the model wrote."
_CWD = (
    "The directory in which the call runs. It belongs to the identity of calls that run in a directory, such as those "
    "of a shell."
)
_CONTENT = "Text of the result or message. Any other value is stored as JSON text."
_CONTENT_DIGEST = (
    "Digest of the whole content, if `content` is only its beginning. Any digest function, used consistently."
)
_CONTENT_LENGTH = "Length of the whole content in characters, if `content` is only its beginning."
_IS_ERROR = "Whether the tool reported an error. Null if unknown."
_USAGE = (
    "Tokens and cost of the model response, sent once: with its first call, or as an event with its `round`."
)
_ROLE = (
    "Who wrote a message; `user` by default. Only a person's messages begin runs, reset counters and contain in-chat "
    "commands. A program that writes in the user's place is a `program`."
)
_OCCURRED_AT = (
    "When it happened, in ISO 8601 with an offset. Shown to people; time windows use the time of receipt."
)


_TAGS = "Tags for the session, added to those it has: at most 16, of 1 to 64 characters."
_METADATA = (
    'Metadata for the session, as in `{"customer": "acme"}`: at most 16 keys. A known key gets the new value.'
)
Tag = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG_CHARACTERS)]


class UsageSchema(Schema):
    """Tokens and cost of a model response."""

    input_tokens: int = Field(0, ge=0, le=MAX_INTEGER, description="Input tokens.")
    output_tokens: int = Field(0, ge=0, le=MAX_INTEGER, description="Output tokens.")
    cost_usd: float = Field(0, ge=0, le=MAX_COST_USD, description="Cost in US dollars.")


class EventSchema(Schema):
    """An event of a session.

    A call, a result, a message, the end of the session, a compaction of its context, the usage of a model response, or
    a heartbeat of a call.
    """

    type: EventTypeName = Field(description="Kind of event.")
    session: str = _name("session", ..., min_length=1, description=_SESSION)
    id: str | None = _name("id", description=_ID)
    run: str | None = _name("run", description=_RUN)
    round: str | None = _name("round", description=_ROUND)
    call_id: str | None = _name(
        "call_id", description=f"Id of the call. {_CALL_OF_RESULT} {_CALL_OF_HEARTBEAT}"
    )
    tool: str | None = _name("tool", description=f"Name of the tool. Required for calls. {_TOOL_OF_RESULT}")
    arguments: dict[str, Any] | str | None = Field(None, description=f"{_ARGUMENTS} {_ARGUMENTS_OF_RESULT}")
    cwd: str | None = _name("cwd", description=f"For calls: {_CWD[0].lower()}{_CWD[1:]}")
    content: Any = Field(None, description=_CONTENT)
    content_digest: str | None = Field(None, max_length=DIGEST_CHARACTERS, description=_CONTENT_DIGEST)
    content_length: int | None = Field(None, ge=0, le=MAX_INTEGER, description=_CONTENT_LENGTH)
    is_error: bool | None = Field(None, description=_IS_ERROR)
    occurred_at: datetime | None = Field(None, description=_OCCURRED_AT)
    backend: str | None = _name("backend", description=_BACKEND)
    model: str | None = _name("model", description=_MODEL)
    agent: str | None = _name("agent", description=_AGENT)
    parent_session: str | None = _name("parent_session", description=_PARENT)
    usage: UsageSchema | None = Field(None, description=_USAGE)
    role: RoleName | None = Field(None, description=_ROLE)
    outcome: OutcomeName | None = Field(
        None, description="How the session ended. For `end` events; `completed` by default."
    )
    tags: list[Tag] | None = Field(None, max_length=MAX_LABELS, description=_TAGS)
    metadata: dict[str, Annotated[str, StringConstraints(max_length=MAX_VALUE_CHARACTERS)]] | None = Field(
        None, max_length=MAX_LABELS, description=_METADATA
    )


class EventBatchSchema(Schema):
    """A batch of events."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "events": [
                        {
                            "type": "call",
                            "session": "ticket-42",
                            "agent": "support",
                            "model": "gpt-5",
                            "call_id": "call_1",
                            "tool": "search_web",
                            "arguments": {"q": "reset password"},
                        },
                        {
                            "type": "result",
                            "session": "ticket-42",
                            "call_id": "call_1",
                            "content": "0 results",
                        },
                    ]
                }
            ]
        }
    )

    events: list[EventSchema] = Field(
        min_length=1, max_length=MAX_EVENTS, description="The events, in order."
    )


class AlteredEventSchema(Schema):
    """An event that was stored with some of its content replaced."""

    index: int = Field(description="Position of the event in the request.")
    marks: list[str] = Field(description="What was altered, as in `nul` or `unknown_field`.")
    unknown_fields: list[str] = Field(
        [], description="Fields that do not exist and were dropped, as in `args`."
    )


class RejectedEventSchema(Schema):
    """An event that was not stored."""

    index: int = Field(description="Position of the event in the request.")
    code: str = Field(description="Stable code of the error.")
    path: str = Field(description="Path of the field at fault within the event.")
    hint: str = Field(description="What is wrong and what is allowed.")


class IngestResultSchema(Schema):
    """The outcome of the events of one request."""

    accepted: int = Field(description="Events that were stored.")
    duplicate: int = Field(description="Events that were stored before.")
    altered: list[AlteredEventSchema] = Field(description="Accepted events that were altered.")
    rejected: list[RejectedEventSchema] = Field(description="Events that were not stored.")
    request_id: str = Field(description="Id of the request.")
    links: dict[str, Any] = Field(description="Console pages of the sessions.")


class GuardResultSchema(Schema):
    """The result of an earlier call."""

    id: str | None = _name("id", description=_ID)
    call_id: str | None = _name("call_id", description=_CALL_OF_RESULT)
    tool: str | None = _name("tool", description=_TOOL_OF_RESULT)
    arguments: dict[str, Any] | str | None = Field(None, description=_ARGUMENTS_OF_RESULT)
    content: Any = Field(None, description=_CONTENT)
    content_digest: str | None = Field(None, max_length=DIGEST_CHARACTERS, description=_CONTENT_DIGEST)
    content_length: int | None = Field(None, ge=0, le=MAX_INTEGER, description=_CONTENT_LENGTH)
    is_error: bool | None = Field(None, description=_IS_ERROR)
    occurred_at: datetime | None = Field(None, description=_OCCURRED_AT)


class GuardCallSchema(Schema):
    """A call that the agent wants to make."""

    id: str | None = _name("id", description=_ID)
    tool: str = _name("tool", ..., min_length=1, description="Name of the tool.")
    call_id: str | None = _name("call_id", description="Id of the call. Assigned if absent.")
    arguments: dict[str, Any] | str | None = Field(None, description=_ARGUMENTS)
    cwd: str | None = _name("cwd", description=_CWD)
    round: str | None = _name("round", description=_ROUND)
    usage: UsageSchema | None = Field(None, description="Tokens and cost of the model response.")
    occurred_at: datetime | None = Field(None, description=_OCCURRED_AT)


class GuardRequestSchema(Schema):
    """Results since the last request, and the calls to evaluate.

    At least one result or call is required, or a list of messages.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session": "ticket-42",
                    "agent": "support",
                    "model": "gpt-5",
                    "results": [{"call_id": "call_1", "content": "0 results"}],
                    "calls": [
                        {"call_id": "call_2", "tool": "search_web", "arguments": {"q": "reset password"}}
                    ],
                }
            ]
        }
    )

    session: str = _name("session", ..., min_length=1, description=_SESSION)
    run: str | None = _name("run", description=_RUN)
    round: str | None = _name("round", description=_ROUND)
    backend: str | None = _name("backend", description=_BACKEND)
    model: str | None = _name("model", description=_MODEL)
    agent: str | None = _name("agent", description=_AGENT)
    parent_session: str | None = _name("parent_session", description=_PARENT)
    tags: list[Tag] | None = Field(None, max_length=MAX_LABELS, description=_TAGS)
    metadata: dict[str, Annotated[str, StringConstraints(max_length=MAX_VALUE_CHARACTERS)]] | None = Field(
        None, max_length=MAX_LABELS, description=_METADATA
    )
    results: list[GuardResultSchema] = Field([], description="Results of earlier calls.")
    calls: list[GuardCallSchema] = Field([], description="Calls that the agent wants to make.")
    messages: list[dict[str, Any]] | None = Field(
        None,
        max_length=MAX_MESSAGES,
        description="Instead of `results` and `calls`: the conversation as sent to the model server, up to and "
        "including the response with the calls.",
    )
    shape: MessageShape | None = Field(None, description="Format of the messages. Required with `messages`.")


class HeldApprovalSchema(Schema):
    """The approval that a held call waits for."""

    id: str = Field(description="Id of the approval.")
    deadline: datetime = Field(description="When the unattended reaction applies.")
    wait_url: str = Field(
        description="Long-poll address. Answers as soon as the approval is decided. Use the same key."
    )


class ReusedAnswerSchema(Schema):
    """The earlier result that a blocked call gets again, below the message."""

    seq: int = Field(description="Sequence number of the call that received the result.")
    age_seconds: int = Field(description="How long ago the result was received, in seconds.")


class VerdictSchema(Schema):
    """The verdict on one call."""

    call_id: str = Field(description="Id of the call.")
    decision: Decision = Field(description="What to do with the call.")
    message: str = Field(description="Message for the model, or for the user after `stop`.")
    incident: str | None = Field(description="Id of the incident, if there is one.")
    rung: Rung | None = Field(description="The reaction of the escalation ladder, if there was one.")
    detection_number: int = Field(
        description="Number of the detection: of this loop or, with `escalation_scope` "
        "`session`, in the run. Advice counts as 0, because it does not climb the ladder."
    )
    ending: Ending | None = Field(
        None,
        description="What a blocked call asks of the agent: to `finish` without tools, to `reuse` the result in "
        "the message, or to "
        "`delay` the call. Clients that do not support it treat the call like any other blocked call.",
    )
    retry_after_seconds: int | None = Field(
        None,
        description="For `delay`: how long to wait, in seconds. If the same call is sent again after that, it may "
        "run.",
    )
    reused: ReusedAnswerSchema | None = Field(None, description="For `reuse`: where the result comes from.")
    finding: FindingSchema | None = Field(description="What was detected, if anything.")
    policy: dict[str, SettingSchema] = Field(description="The settings that applied, each with its source.")
    duplicate: bool = Field(
        description="Whether the call was evaluated before. The first verdict is repeated."
    )
    approval: HeldApprovalSchema | None = Field(None, description="The approval of a held call.")
    rendered: dict[str, Any] | str | None = Field(
        None, description="The message in the wire shape that `render` names."
    )


class AlteredItemSchema(Schema):
    """A call or result that was stored with some of its content replaced."""

    path: str = Field(description="Path of the call or result, as in `calls[0]`.")
    marks: list[str] = Field(description="What was altered, as in `nul` or `unknown_field`.")
    unknown_fields: list[str] = Field(
        [], description="Fields that do not exist and were dropped, as in `args`."
    )


class ReadMessagesSchema(Schema):
    """How many messages of a list were read, and how many of them were new."""

    messages: int = Field(description="Length of the list.")
    new: int = Field(description="Messages that had not been read before.")
    resent: bool = Field(description="Whether the list was read before. The first verdicts are repeated.")
    condensed: bool = Field(
        description="Whether the beginning of the list was replaced by something shorter."
    )


class GuardResponseSchema(Schema):
    """The verdicts on the calls of one request."""

    session: str = Field(description="Your name for the session.")
    decision: Decision = Field(description="The strictest decision among the verdicts.")
    verdicts: list[VerdictSchema] = Field(description="One verdict per call, in the order of the calls.")
    notices: list[VerdictSchema] = Field(description="Findings caused by the results of this request.")
    altered: list[AlteredItemSchema] = Field([], description="Calls and results that were altered.")
    read: ReadMessagesSchema | None = Field(None, description="For `messages`: what was read.")
    request_id: str = Field(description="Id of the request.")
    links: dict[str, str] = Field(description="Console pages of the session and the incident.")
