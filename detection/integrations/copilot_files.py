"""Session files of Copilot CLI (`~/.copilot/session-state/*/events.jsonl`), read into events of the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from detection.integrations.events import ReportedEvent, ReportedUsage
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

AGENT: Final = "copilot"
_SHELL: Final = re.compile(r"<shellId: \w{1,32} completed with exit code (-?\d{1,10})>\s*\Z")
"""The end of what a shell said: its number is another one in each call."""


def is_copilot_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is one of a session file of Copilot CLI."""
    return isinstance(entry, dict) and isinstance(entry.get("data"), dict) and "." in text_of(entry, "type")


def copilot_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file, given the JSON value of each of its lines.

    The tokens of a response come before it.
    """
    about: ReportedEvent = {}
    usage: ReportedUsage | None = None
    for entry in entries:
        if not is_copilot_entry(entry):
            continue
        kind, data = entry["type"], entry["data"]
        if kind == "session.start" and not about:
            about = _session(data)
        common = (about or _session({})) | {"occurred_at": entry.get("timestamp")}
        if kind == "user.message":
            yield from prompt_events(common, text_of(data, "content"))
        elif kind == "session.usage_record":
            usage = usage_of(object_of(data, "usage"), ("inputTokens",), ("outputTokens",), "cacheReadTokens")
        elif kind == "assistant.message":
            calls = objects_of(data, "toolRequests")
            names: ReportedEvent = {"round": text_of(data, "messageId"), "model": text_of(data, "model")}
            yield from response_events(
                common | names,
                [(text_of(one, "toolCallId"), text_of(one, "name"), one.get("arguments")) for one in calls],
                usage,
            )
            usage = None
        elif kind == "tool.execution_complete":
            has_failed = data.get("success") is False
            yield result_event(
                common, text_of(data, "toolCallId"), _said(data, has_failed=has_failed), is_error=has_failed
            )


def _said(data: Mapping[str, Any], *, has_failed: bool) -> Any:
    if has_failed:
        return object_of(data, "error").get("message")
    said = object_of(data, "result").get("content")
    return _SHELL.sub(r"<exit code \1>", said) if isinstance(said, str) else said


def _session(about: Mapping[str, Any]) -> ReportedEvent:
    cwd = text_of(object_of(about, "context"), "cwd")
    session = session_name(text_of(about, "sessionId"), program=AGENT, place=cwd)
    common: ReportedEvent = {"session": session, "agent": AGENT, "backend": "copilot"}
    return common | {"cwd": cwd} if cwd else common
