"""The trace form of recorded runs: one JSON object per line, one call each, the lines of a session together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from detection.integrations.events import ReportedEvent

Line = dict[str, Any]
SessionName = tuple[str, str]


def name_of(event: Line) -> SessionName:
    """Return source and session of an event or a label."""
    return str(event.get("source") or ""), str(event.get("session") or "")


def responses(events: Iterable[Line]) -> Iterator[list[Line]]:
    """Return consecutive events of one model response together; an event without a `turn` is a response of its own."""
    for (_, turn), group in groupby(events, key=lambda event: (name_of(event), event.get("turn"))):
        if turn is None:
            yield from ([event] for event in group)
        else:
            yield list(group)


def events_of(response: list[Line]) -> Iterator[ReportedEvent]:
    """Yield the events of one model response: a message of the user before it, its calls, then their results."""
    results: list[ReportedEvent] = []
    for line in response:
        common: ReportedEvent = {"session": f"{line.get('source')}/{line.get('session')}"}
        for name in ("backend", "model", "agent"):
            if line.get(name) is not None:
                common[name] = line[name]
        if (at := _with_offset(line.get("ts"))) is not None:
            common["occurred_at"] = at
        if line.get("user_before"):
            yield {**common, "type": "message", "id": _event_id(line, "message")}
        common["call_id"] = f"recorded-{line.get('seq')}"
        call: ReportedEvent = {
            **common,
            "type": "call",
            "id": _event_id(line, "call"),
            "tool": line.get("tool", ""),
            "arguments": line.get("arguments"),
        }
        if line.get("cwd") is not None:
            call["cwd"] = line["cwd"]
        if line.get("turn") is not None:
            call["round"] = f"turn-{line['turn']}"
        yield call
        if line.get("result") is not None:
            result: ReportedEvent = {
                **common,
                "type": "result",
                "id": _event_id(line, "result"),
                "content": line["result"],
            }
            if line.get("is_error") is not None:
                result["is_error"] = line["is_error"]
            results.append(result)
    yield from results


def _event_id(line: Line, kind: str) -> str:
    """Return an event id that is the same whenever the file is posted again."""
    name = f"{line.get('source')}/{line.get('session')}/{line.get('seq')}"
    return f"recorded-{kind}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def _with_offset(stamp: Any) -> Any:
    """Return a time of a trace as the API accepts it; one without an offset is in UTC."""
    try:
        at = datetime.fromisoformat(stamp)
    except (TypeError, ValueError):
        return stamp
    return stamp if at.tzinfo else at.replace(tzinfo=UTC).isoformat()
