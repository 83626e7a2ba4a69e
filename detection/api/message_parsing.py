"""Parses guard requests with a list of messages: strict about what names a call, lenient about everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from detection.api.event_parsing import MAX_EVENT_BYTES, event_record, event_size, labels
from detection.api.guard_parsing import altered_body, altered_item, request_about, shared_names
from detection.api.problems import Problem
from detection.integrations.events import ReportedEvent
from detection.integrations.labels import NO_LABELS, Labels
from detection.integrations.message_lists import ReadMessage, read_messages
from detection.integrations.transcripts import MESSAGE_SHAPES, MessageShape
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest
from detection.services.ingestion.message_guard import MAX_MESSAGES
from detection.strict_json import join

_ROLES: Final[Mapping[str, frozenset[str]]] = {
    "openai": frozenset(("system", "developer", "user", "assistant", "tool", "function")),
    "anthropic": frozenset(("system", "user", "assistant")),
    "responses": frozenset(("system", "developer", "user", "assistant")),
}


@dataclass(slots=True)
class MessageList:
    """A guard request with a list of messages.

    Attributes
    ----------
    about
        The request without events.
    messages
        The messages that count; `count` is the number of all messages.
    altered
        Alterations so far: ``{"path", "marks"}`` each.
    """

    about: GuardRequest
    messages: list[ReadMessage]
    count: int
    round: str
    altered: list[dict[str, object]]
    is_large: bool
    shared: dict[str, str]
    _altered_at: set[str] = field(default_factory=set)

    def record(self, message: ReadMessage, event: ReportedEvent) -> EventRecord:
        """Return the record of an event of a message.

        Raises
        ------
        Problem
            If the API would reject the event, with the path of its message.
        """
        path = f"messages[{message.index}]"
        try:
            record = event_record(event, shared=self.shared, size=event_size(event) if self.is_large else 0)
        except Problem as problem:
            problem.path = join(path, problem.path)
            raise
        if record.altered and path not in self._altered_at:
            self._altered_at.add(path)
            self.altered.append(altered_item(path, record))
        return record


def message_list_of(
    document: dict[str, object], size: int, secret: bytes, given: Labels = NO_LABELS
) -> MessageList:
    """Read a body with `messages` and `shape`.

    Parameters
    ----------
    size
        Bytes of the body.
    secret
        Key of the digests of messages.
    given
        Tags and metadata of the headers; those of the body are added.

    Raises
    ------
    Problem
        With the path of the field at fault.
    """
    shared = shared_names(document)
    shape, messages = _shape(document.get("shape")), document.get("messages")
    if messages is None:
        raise Problem(422, "missing", "`messages` is required with `shape`.", path="messages")
    for key in ("calls", "results"):
        if document.get(key):
            detail = f"`{key}` must be absent when `messages` is sent."
            raise Problem(422, "invalid_value", detail, path=key)
    if not isinstance(messages, list):
        raise Problem(422, "invalid_type", "`messages` must be a list.", path="messages")
    if not messages:
        raise Problem(422, "missing", "`messages` must contain at least one message.", path="messages")
    if len(messages) > MAX_MESSAGES:
        raise Problem(
            413, "too_many_events", f"A request can have at most {MAX_MESSAGES:,} messages.", path="messages"
        )
    for index, message in enumerate(messages):
        _check(message, shape, f"messages[{index}]")
    return MessageList(
        about=request_about(shared, given.joined(labels(document.get("tags"), document.get("metadata")))),
        messages=read_messages(messages, shape, secret),
        count=len(messages),
        round=shared.pop("round", ""),
        altered=altered_body(document),
        is_large=size > MAX_EVENT_BYTES,
        shared=shared,
    )


def _shape(value: Any) -> MessageShape:
    known = next((shape for shape in MESSAGE_SHAPES if shape == value), None)
    if known is None:
        code = "missing" if value is None else "invalid_value"
        raise Problem(422, code, f"`shape` must be one of {', '.join(MESSAGE_SHAPES)}.", path="shape")
    return known


def _check(message: Any, shape: MessageShape, path: str) -> None:
    if not isinstance(message, dict):
        raise Problem(422, "invalid_type", "A message must be an object.", path=path)
    if shape != "responses" or message.get("type", "message") == "message":
        _check_role(message, shape, path)
    if shape == "openai":
        for at, call in _objects(message, "tool_calls", path):
            kind = "custom" if "custom" in call else "function"
            function = call.get(kind)
            if not isinstance(function, dict):
                raise Problem(422, "invalid_type", f"`{kind}` must be an object.", path=f"{at}.{kind}")
            _check_name(function, f"{at}.{kind}")
    elif shape == "anthropic" and not isinstance(message.get("content"), str):
        for at, block in _objects(message, "content", path):
            if block.get("type") == "tool_use":
                _check_name(block, at)
    elif message.get("type") in ("function_call", "custom_tool_call"):
        _check_name(message, path)


def _check_role(message: dict[str, object], shape: MessageShape, path: str) -> None:
    role: Any = message.get("role")
    if not isinstance(role, str) or role not in _ROLES[shape]:
        code = "missing" if role is None else "invalid_value"
        allowed = ", ".join(sorted(_ROLES[shape]))
        raise Problem(422, code, f"`role` must be one of {allowed}.", path=f"{path}.role")


def _objects(message: dict[str, object], key: str, path: str) -> list[tuple[str, dict[str, object]]]:
    """Return the objects of a list with their paths; null is an empty list."""
    values = message.get(key)
    if values is None:
        return []
    if not isinstance(values, list):
        raise Problem(422, "invalid_type", f"`{key}` must be a list.", path=f"{path}.{key}")
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise Problem(
                422, "invalid_type", f"An entry of `{key}` must be an object.", path=f"{path}.{key}[{number}]"
            )
    return [(f"{path}.{key}[{number}]", value) for number, value in enumerate(values)]


def _check_name(data: dict[str, object], path: str) -> None:
    name: Any = data.get("name")
    if not isinstance(name, str) or not name:
        code = "missing" if name is None or name == "" else "invalid_type"
        raise Problem(422, code, "`name` of the tool is required.", path=f"{path}.name")
