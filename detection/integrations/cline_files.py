"""Session files of Cline (`~/.cline/data/sessions/*/*.messages.json`), read into events of the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from detection.integrations.events import ReportedEvent
from detection.integrations.session_files import (
    moment_of,
    object_of,
    objects_of,
    prompt_events,
    response_events,
    result_event,
    text_of,
    texts_of,
    usage_of,
)
from detection.integrations.session_names import session_name

AGENT: Final = "cline"
_PROMPT: Final = re.compile(r"<user_input[^>]{0,64}>(.*)</user_input>", re.DOTALL)


def is_cline_entry(entry: Any) -> bool:
    """Return whether a JSON document is a session of Cline."""
    is_object = isinstance(entry, dict)
    return is_object and isinstance(entry.get("messages"), list) and isinstance(entry.get("sessionId"), str)


def cline_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file, given its document."""
    for entry in entries:
        if not is_cline_entry(entry):
            continue
        common: ReportedEvent = {
            "session": session_name(text_of(entry, "sessionId"), program=AGENT),
            "agent": AGENT,
        }
        for message in objects_of(entry, "messages"):
            yield from _events(common | {"occurred_at": moment_of(message, "ts")}, message)


def _events(common: ReportedEvent, message: Mapping[str, Any]) -> Iterator[ReportedEvent]:
    blocks = objects_of(message, "content")
    if message.get("role") == "assistant":
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        model = object_of(message, "modelInfo")
        names: ReportedEvent = {"model": text_of(model, "id"), "backend": text_of(model, "provider")}
        yield from response_events(
            common | names | {"round": text_of(message, "id")},
            [(text_of(call, "id"), text_of(call, "name"), call.get("input")) for call in calls],
            usage_of(
                object_of(message, "metrics"),
                ("inputTokens",),
                ("outputTokens",),
                "cacheReadTokens",
                "cacheWriteTokens",
            ),
        )
    elif message.get("role") == "user":
        for block in blocks:
            if block.get("type") == "tool_result":
                content, has_failed = _said(block)
                yield result_event(common, text_of(block, "tool_use_id"), content, is_error=has_failed)
        text = texts_of(message, "content")
        found = _PROMPT.fullmatch(text.strip())
        yield from prompt_events(common, found[1].strip() if found else text)


def _said(block: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return what a tool said, and whether it failed. A tool may have done several things in one call."""
    has_failed = block.get("is_error") is True
    answers = objects_of(block, "content")
    if not answers:
        return block.get("content"), has_failed
    texts = [one.get("result", one.get("text")) for one in answers]
    has_failed = has_failed or any(one.get("success") is False for one in answers)
    if all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts)), has_failed
    return block.get("content"), has_failed
