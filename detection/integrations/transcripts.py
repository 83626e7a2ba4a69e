"""Recorded runs of agents, read into events of the API: one reader per form, each a stream that keeps no run in memory.

The events of a session come in the order in which they are to count, with the times of the record where it has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from detection.integrations.events import ReportedEvent, ReportedUsage
from detection.integrations.people import is_program_text
from detection.integrations.session_names import bounded, session_name
from detection.integrations.text_protocols import with_native_calls
from detection.strict_json import compact

MessageShape = Literal["openai", "anthropic", "responses"]
MESSAGE_SHAPES: Final[tuple[MessageShape, ...]] = ("openai", "anthropic", "responses")
_MODEL_ROLES: Final = frozenset(("assistant", "model"))
_MODEL_ITEMS: Final = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
_PROGRAM: Final = "program"
_USER_ROLES: Final = ("user", _PROGRAM)
_COUNTED_RESPONSES: Final = 1_000
"""The lines of a response are close together; older ones are forgotten."""


class TranscriptError(ValueError):
    """The text is not a transcript of this format."""


def claude_code_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file of Claude Code, given the JSON value of each of its lines.

    A model response is several lines with one message id, each with the usage of the whole; it counts once.
    """
    counted: dict[str, None] = {}
    for entry in entries:
        message = entry.get("message") if isinstance(entry, dict) else None
        if isinstance(message, dict):
            yield from _claude_code_entry(entry, message, counted)
            if len(counted) > _COUNTED_RESPONSES:
                del counted[next(iter(counted))]


def is_claude_code_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is one of a session file of Claude Code."""
    if not isinstance(entry, dict):
        return False
    message = entry.get("message")
    # The lines of Qwen Code have the same names, and messages of parts.
    has_parts = isinstance(message, dict) and "parts" in message
    is_message = entry.get("type") in ("user", "assistant") and isinstance(message, dict) and not has_parts
    has_name = isinstance(entry.get("sessionId") or entry.get("summary"), str)
    is_other = (
        isinstance(entry.get("type"), str) and has_name and not has_parts and "systemPayload" not in entry
    )
    return is_message or is_other


def _claude_code_entry(
    entry: dict[str, object], message: dict[str, object], counted: dict[str, None]
) -> Iterator[ReportedEvent]:
    main = session_name(_text(entry, "sessionId"), program="claude-code")
    sub_agent = _text(entry, "agentId") or ("sidechain" if entry.get("isSidechain") is True else "")
    common: ReportedEvent = {
        "session": session_name(main, sub_agent) if sub_agent else main,
        "parent_session": main if sub_agent else None,
        "agent": "claude-code",
        "occurred_at": entry.get("timestamp"),
    }
    if entry.get("type") == "assistant":
        response = _text(message, "id") or _text(entry, "uuid")
        common |= {"round": response, "model": _text(message, "model"), "backend": "anthropic"}
        common["cwd"] = _text(entry, "cwd")
        usage = None if response in counted else _usage(message.get("usage"), entry.get("costUSD"))
        for block in _blocks(message.get("content")):
            if block.get("type") == "tool_use":
                yield _call(common, block.get("id"), block.get("name"), block.get("input"), usage)
                counted[response] = None
                usage = None
    elif entry.get("isCompactSummary"):
        yield common | {"type": "compaction"}
    elif entry.get("type") == "user" and not entry.get("isMeta"):
        for event in _user_message(common, message.get("content")):
            # What the host adds for itself is no message, and a sub-agent has no user.
            if event["type"] != "message" or not (sub_agent or "role" in event):
                yield event


def message_events(messages: Any, shape: MessageShape, session: str) -> Iterator[ReportedEvent]:
    """Yield the events of a list of messages, as a client sends it to its model server.

    Parameters
    ----------
    messages
        The list: `messages` of OpenAI's chat completions or of Anthropic, `input` of OpenAI's responses.
    shape
        Whose messages they are.
    session
        Name of the session.

    Raises
    ------
    TranscriptError
        If it is not a list of objects.
    """
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TranscriptError("A transcript must be a list of messages.")
    before = ""
    for number, message in enumerate(with_native_calls(messages) if shape == "openai" else messages):
        for event in events_of_message(message, shape, before):
            yield {"session": session, "round": f"message-{number}" if shape != "responses" else None} | event
        before = text_of_message(message) if is_of_model(message) else before


def is_of_model(message: dict[str, object]) -> bool:
    """Return whether the model wrote a message or item."""
    return message.get("role") in _MODEL_ROLES or message.get("type") in _MODEL_ITEMS


def events_of_message(
    message: dict[str, object], shape: MessageShape, before: str = ""
) -> Iterator[ReportedEvent]:
    """Yield the events of one message of a list, without session and round; see `message_events`.

    Parameters
    ----------
    before
        Text of the last message of the model before it.
    """
    common: ReportedEvent = {}
    if shape == "openai":
        yield from _chat_message(common, message, before)
    elif shape == "responses":
        yield from _responses_item(common, message, before)
    elif message.get("role") == "assistant":
        for block in _blocks(message.get("content")):
            if block.get("type") == "tool_use":
                yield _call(common, block.get("id"), block.get("name"), block.get("input"))
    elif message.get("role") in _USER_ROLES:
        yield from _by_program(message, _user_message(common, message.get("content"), before))


def with_programs_named(
    messages: Iterable[dict[str, object]], shape: MessageShape
) -> Iterator[dict[str, object]]:
    """Yield messages of which those that programs wrote have the role `program`, so that it is known without the rest.

    Whether a program wrote a text may depend on what the model said before.
    """
    before = ""
    for message in messages:
        if is_of_model(message):
            before = text_of_message(message)
        elif message.get("role") == "user" and any(
            event.get("role") == _PROGRAM for event in events_of_message(message, shape, before)
        ):
            yield message | {"role": _PROGRAM}
            continue
        yield message


def text_of_message(message: dict[str, object]) -> str:
    """Return the plain text of a message or item, without calls, results, images and reasoning."""
    return _joined(message.get("content", message.get("parts")))


def _chat_message(common: ReportedEvent, message: dict[str, object], before: str) -> Iterator[ReportedEvent]:
    role, content = message.get("role"), message.get("content", message.get("parts"))
    if role in _USER_ROLES:
        yield from _by_program(message, [_said(common, content, before)])
    elif role == "tool":
        yield _result(common, message.get("tool_call_id"), _joined(content) or content, None)
    elif role == "assistant":
        for call in _blocks(message.get("tool_calls")):
            function = call.get("function") or call.get("custom")
            part = function if isinstance(function, dict) else {}
            yield _call(common, call.get("id"), part.get("name"), part.get("arguments", part.get("input")))


def _responses_item(common: ReportedEvent, item: dict[str, object], before: str) -> Iterator[ReportedEvent]:
    kind = item.get("type", "message")
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments", item.get("input"))
        yield _call(common, item.get("call_id"), item.get("name"), arguments)
    elif kind == "local_shell_call":
        yield _call(common, item.get("call_id"), "local_shell", item.get("action"))
    elif isinstance(kind, str) and kind.endswith("_call_output"):
        output = item.get("output")
        yield _result(common, item.get("call_id"), _joined(output) or output, None)
    elif kind == "message" and item.get("role") in _USER_ROLES:
        yield from _by_program(item, [_said(common, item.get("content"), before)])


def _user_message(common: ReportedEvent, content: Any, before: str = "") -> Iterator[ReportedEvent]:
    """Yield the results in a message of the user's side, or the prompt that it is."""
    results = [block for block in _blocks(content) if block.get("type") == "tool_result"]
    for block in results:
        answer = block.get("content")
        yield _result(common, block.get("tool_use_id"), _joined(answer) or answer, block.get("is_error"))
    if not results and content:
        yield _said(common, content, before)


def _call(
    common: ReportedEvent, call_id: Any, tool: Any, arguments: Any, usage: ReportedUsage | None = None
) -> ReportedEvent:
    return common | {
        "type": "call",
        "call_id": bounded(call_id) if isinstance(call_id, str) else None,
        "tool": bounded(tool, 128) if isinstance(tool, str) and tool else "unnamed",
        "arguments": arguments
        if arguments is None or isinstance(arguments, (dict, str))
        else compact(arguments),
        "usage": usage,
    }


def _result(common: ReportedEvent, call_id: Any, content: Any, is_error: Any) -> ReportedEvent:
    return common | {
        "type": "result",
        "round": None,
        "call_id": bounded(call_id) if isinstance(call_id, str) else None,
        "content": content if content is None or isinstance(content, str) else compact(content),
        "is_error": is_error if isinstance(is_error, bool) else None,
    }


def _said(common: ReportedEvent, content: Any, before: str) -> ReportedEvent:
    """Return the prompt of a message of the user's side, without what programs add; theirs alone is a program's."""
    parts = [content] if isinstance(content, str) else [_text(block, "text") for block in _blocks(content)]
    texts = [part for part in parts if part]
    own = [part for part in texts if not is_program_text(part, before)]
    said = common | {"type": "message", "round": None, "content": "\n".join(own or texts).strip()}
    if texts and not own:
        return said | {"role": _PROGRAM}
    # A picture says something, too.
    return said if texts or not _blocks(content) else said | {"content": None}


def _by_program(message: dict[str, object], events: Iterable[ReportedEvent]) -> Iterator[ReportedEvent]:
    is_named = message.get("role") == _PROGRAM
    for event in events:
        yield event | {"role": _PROGRAM} if is_named and event["type"] == "message" else event


def _usage(usage: Any, cost: Any) -> ReportedUsage | None:
    """Return the usage of a response; what it read from a cache counts as input."""
    if not isinstance(usage, dict):
        return None
    inputs = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {
        "input_tokens": sum(_count(usage.get(name)) for name in inputs),
        "output_tokens": _count(usage.get("output_tokens")),
        "cached_tokens": _count(usage.get("cache_read_input_tokens")),
        "cache_write_tokens": _count(usage.get("cache_creation_input_tokens")),
        "cost_usd": cost
        if isinstance(cost, (int, float)) and not isinstance(cost, bool) and cost >= 0
        else None,
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _blocks(content: Any) -> list[dict[str, object]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _joined(content: Any) -> str:
    """Return the text of a message: plain, or the parts that are text. Empty if another part has more to say."""
    if isinstance(content, str):
        return content
    texts = [block.get("text") for block in _blocks(content)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _text(data: dict[str, object], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""
