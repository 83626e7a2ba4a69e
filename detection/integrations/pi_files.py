"""Session files of pi (`~/.pi/agent/sessions/**/*.jsonl`), read into events of the API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from detection.integrations.events import ReportedEvent
from detection.integrations.session_files import (
    cost_of,
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

AGENT: Final = "pi"
_TYPES: Final = ("model_change", "thinking_level_change", "compaction", "branch_summary", "custom", "label")


def is_pi_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is one of a session file of pi."""
    if not isinstance(entry, dict):
        return False
    is_head = entry.get("type") == "session" and isinstance(entry.get("id"), str) and "version" in entry
    is_step = "parentId" in entry and (entry.get("type") in _TYPES or _is_message(entry))
    return is_head or is_step


def pi_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file, given the JSON value of each of its lines.

    A file is a tree, because a person may go back and try again; what was tried before has happened as well.
    """
    about: ReportedEvent = _session({})
    for entry in entries:
        if not is_pi_entry(entry):
            continue
        if entry["type"] == "session":
            about = _session(entry)
        elif entry["type"] == "compaction":
            yield about | {"type": "compaction", "occurred_at": entry.get("timestamp")}
        elif _is_message(entry):
            common: ReportedEvent = about | {"occurred_at": entry.get("timestamp")}
            yield from _events(common, text_of(entry, "id"), entry["message"])


def _is_message(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "message" and isinstance(entry.get("message"), dict)


def _session(entry: Mapping[str, Any]) -> ReportedEvent:
    return {
        "session": session_name(text_of(entry, "id"), program=AGENT),
        "agent": AGENT,
        "cwd": text_of(entry, "cwd"),
    }


def _events(common: ReportedEvent, place: str, message: Mapping[str, Any]) -> Iterator[ReportedEvent]:
    role = message.get("role")
    if role == "user":
        yield from prompt_events(common, texts_of(message, "content"))
    elif role == "assistant":
        parts = objects_of(message, "content")
        calls = [part for part in parts if part.get("type") == "toolCall"]
        usage = object_of(message, "usage")
        names: ReportedEvent = {"model": text_of(message, "model"), "backend": text_of(message, "provider")}
        yield from response_events(
            common | names | {"round": text_of(message, "responseId") or place},
            [(text_of(call, "id"), text_of(call, "name"), call.get("arguments")) for call in calls],
            usage_of(
                usage,
                ("input", "cacheRead", "cacheWrite"),
                ("output",),
                "cacheRead",
                "cacheWrite",
                cost_of(object_of(usage, "cost"), "total"),
            ),
        )
    elif role == "toolResult":
        has_failed = message.get("isError") is True
        content = texts_of(message, "content")
        yield result_event(common, text_of(message, "toolCallId"), content, is_error=has_failed)
