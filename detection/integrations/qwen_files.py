"""Session files of Qwen Code (`~/.qwen/projects/*/chats/*.jsonl`), read into events of the API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from detection.integrations.events import ReportedEvent
from detection.integrations.session_files import (
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

AGENT: Final = "qwen-code"


def is_qwen_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is one of a session file of Qwen Code.

    They resemble those of Claude Code, with messages in the form of Gemini.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("sessionId"), str):
        return False
    has_parts = isinstance(object_of(entry, "message").get("parts"), list)
    return has_parts or (entry.get("type") == "system" and "systemPayload" in entry)


def qwen_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file, given the JSON value of each of its lines."""
    for entry in entries:
        if is_qwen_entry(entry):
            yield from _events(entry)


def _events(entry: Mapping[str, Any]) -> Iterator[ReportedEvent]:
    common: ReportedEvent = {
        "session": session_name(text_of(entry, "sessionId"), program=AGENT),
        "agent": AGENT,
        "cwd": text_of(entry, "cwd"),
        "occurred_at": entry.get("timestamp"),
    }
    kind, message = entry.get("type"), object_of(entry, "message")
    if kind == "user" and entry.get("provenance") in (None, "real_user"):
        yield from prompt_events(common, texts_of(message, "parts"))
    elif kind == "assistant":
        calls = [object_of(part, "functionCall") for part in objects_of(message, "parts")]
        yield from response_events(
            common | {"round": text_of(entry, "uuid"), "model": text_of(entry, "model")},
            [(text_of(call, "id"), text_of(call, "name"), call.get("args")) for call in calls if call],
            usage_of(
                object_of(entry, "usageMetadata"),
                ("promptTokenCount",),
                ("candidatesTokenCount", "thoughtsTokenCount"),
                "cachedContentTokenCount",
            ),
        )
    elif kind == "tool_result":
        result = object_of(entry, "toolCallResult")
        for part in objects_of(message, "parts"):
            if answer := object_of(part, "functionResponse"):
                content = _said(result, object_of(answer, "response"))
                has_failed = text_of(result, "status") not in ("", "success")
                yield result_event(common, text_of(answer, "id"), content, is_error=has_failed)


def _said(result: Mapping[str, Any], answer: Mapping[str, Any]) -> Any:
    """Return what a tool said. What is shown of a shell lacks the number of the process, which differs each time."""
    shown = result.get("resultDisplay")
    if isinstance(shown, dict) and isinstance(shown.get("output"), str):
        return shown["output"]
    return answer.get("output", answer.get("error", answer or None))
