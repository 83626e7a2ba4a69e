"""Events of a conversation as records: parsed leniently, because nothing sent to a model server is rejected here."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from detection.integrations.events import ReportedEvent
from detection.integrations.session_names import bounded
from detection.services.events.event_records import EventRecord, SharedNames
from detection.strict_json import Cleaner, JsonProblem, compact

KEPT_CHARACTERS: Final = 16_384
"""Maximum length of contents and arguments; a digest stands for the rest."""


def event_record(event: ReportedEvent, shared: SharedNames) -> EventRecord:
    """Return the record of an event.

    Parameters
    ----------
    event
        As `integrations.transcripts` reads it from a message.
    shared
        Names that all events of the request have.
    """
    record = EventRecord(type=event["type"], **shared)
    record.call_id = bounded(event.get("call_id") or "")
    record.round = bounded(event.get("round") or "")
    cleaner = Cleaner()
    if record.type == "call":
        record.tool = bounded(event.get("tool") or "unnamed", 128)
        record.arguments = _arguments(event.get("arguments"), cleaner)
    else:
        content = event.get("content")
        if isinstance(content, str):
            _set_content(record, cleaner.text(content))
        record.is_error = event.get("is_error")
        record.role = event.get("role") or ""
    record.altered = ",".join(cleaner.marks)[:120]
    return record


def _set_content(record: EventRecord, content: str) -> None:
    record.content = content
    if len(content) > KEPT_CHARACTERS:
        record.content_length = len(content)
        record.tail_digest = _digest(content)
        record.content = content[:KEPT_CHARACTERS]


def _arguments(value: Any, cleaner: Cleaner) -> str | None:
    if value is None:
        return None
    try:
        if isinstance(value, dict):
            text = cleaner.json_text(compact(value))
        else:
            text = cleaner.json_text(value) if value.lstrip()[:1] in ("{", "[") else cleaner.text(value)
    except JsonProblem:  # too deep or too long for the parser: text like any other
        text = cleaner.text(value if isinstance(value, str) else compact(value))
    if len(text) > 8 * KEPT_CHARACTERS:
        return f"{text[:KEPT_CHARACTERS]}… {len(text)} characters, digest {_digest(text)}"
    return text


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
