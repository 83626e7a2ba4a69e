"""Server-sent events as bytes: split where they end, so that untouched ones are passed on as they came."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import orjson

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_END: Final = re.compile(rb"\n\r?\n")


class EventTooLarge(Exception):
    """An event does not end within `MAX_EVENT_BYTES`."""


class EventSplitter:
    """Splits a stream into events, each with the empty line that ends it.

    Attributes
    ----------
    rest
        The beginning of the event that has not ended yet.
    """

    def __init__(self) -> None:
        self.rest = b""
        self._searched = 0

    def split(self, data: bytes) -> Iterator[bytes]:
        """Yield the events that end in `data`. The whole stream costs linear time."""
        rest = self.rest + data if self.rest else data
        start, at = 0, max(0, self._searched - 2)
        while (found := _END.search(rest, at)) is not None:
            yield rest[start : found.end()]
            start = at = found.end()
        self.rest = rest[start:]
        self._searched = len(self.rest)
        if self._searched > MAX_EVENT_BYTES:
            raise EventTooLarge


def payload(event: bytes) -> bytes:
    """Return the data of an event; empty for a comment."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def document(event: bytes) -> dict[str, object] | None:
    """Return the data of an event, if it is a JSON object."""
    try:
        found = orjson.loads(payload(event))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def event(data: dict[str, object], name: str = "") -> bytes:
    """Return an event with JSON data."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
