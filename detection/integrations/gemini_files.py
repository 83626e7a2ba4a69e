"""Session files of Gemini CLI (`~/.gemini/tmp/*/chats/*.jsonl`), read into events of the API."""

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
    usage_of,
)
from detection.integrations.session_names import session_name

AGENT: Final = "gemini-cli"


def is_gemini_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is one of a session file of Gemini CLI."""
    if not isinstance(entry, dict):
        return False
    is_head = isinstance(entry.get("sessionId"), str) and "projectHash" in entry
    is_change = isinstance(entry.get("$set"), dict)
    return is_head or is_change or (entry.get("type") in ("user", "gemini") and "content" in entry)


def gemini_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file, given the JSON value of each of its lines.

    A response is written again when its calls have ended, under the same id: its last line counts.
    """
    common: ReportedEvent = {}
    latest: Mapping[str, Any] = {}
    for entry in entries:
        if not is_gemini_entry(entry):
            continue
        if "sessionId" in entry and not common:
            common = {"session": session_name(text_of(entry, "sessionId"), program=AGENT), "agent": AGENT}
        if entry.get("type") not in ("user", "gemini"):
            continue
        if entry.get("id") != latest.get("id"):
            yield from _events(common, latest)
        latest = entry
    yield from _events(common, latest)


def _events(common: ReportedEvent, entry: Mapping[str, Any]) -> Iterator[ReportedEvent]:
    if not entry:
        return
    common = common or {"session": session_name("", program=AGENT), "agent": AGENT}
    common = common | {"occurred_at": entry.get("timestamp")}
    if entry["type"] == "user":
        # Results of tools, which the response has too, are no texts.
        content = entry.get("content")
        parts = [text_of(part, "text") for part in objects_of(entry, "content")]
        yield from prompt_events(
            common, content if isinstance(content, str) else "\n".join(filter(None, parts))
        )
        return
    common |= {"model": text_of(entry, "model"), "backend": "gemini"}
    calls = objects_of(entry, "toolCalls")
    yield from response_events(
        common | {"round": text_of(entry, "id")},
        [(text_of(call, "id"), text_of(call, "name"), call.get("args")) for call in calls],
        usage_of(object_of(entry, "tokens"), ("input",), ("output", "thoughts"), "cached"),
    )
    for call in calls:
        status = text_of(call, "status")
        if status in ("success", "error", "cancelled"):
            at: ReportedEvent = {"occurred_at": call.get("timestamp") or entry.get("timestamp")}
            yield result_event(common | at, text_of(call, "id"), _said(call), is_error=status != "success")


def _said(call: Mapping[str, Any]) -> Any:
    """Return what a tool said. What is shown of it lacks the number of the process, which differs each time."""
    if shown := text_of(call, "resultDisplay"):
        return shown
    answers = [
        object_of(object_of(one, "functionResponse"), "response") for one in objects_of(call, "result")
    ]
    return next((one.get("output", one.get("error", one)) for one in answers), None)
