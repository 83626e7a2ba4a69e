"""The stream of OpenAI's responses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from detection.gateway.protocols.answers import (
    Message,
    Resolution,
    ToolCall,
    dicts,
    object_field,
    text_field,
    whole_number,
)
from detection.gateway.protocols.responses_items import CALL_ITEMS, call_of, message_item, usage_of
from detection.gateway.protocols.stream import StreamReader, joined_strings

_DELTAS: Final = re.compile(
    rb"event: response\.(output_text|reasoning_(?:summary_)?text)\.delta\n"
    rb'data: [^\n]*?"delta": ?"((?:[^"\\]|\\.)*+)"'
)
_TEXTS: Final = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "thinking",
    "response.reasoning_summary_text.delta": "thinking",
}
_LAST: Final = ("response.completed", "response.incomplete")


class EventNumbers:
    """Renumbers the events of a stream once one was dropped or added."""

    def __init__(self) -> None:
        self.next = 0

    def passed(self, document: dict[str, object]) -> None:
        """Note the number of an event that passes as it came."""
        self.next = max(self.next, whole_number(document.get("sequence_number")) + 1)

    def event(self, document: dict[str, object]) -> bytes:
        """Return an event with the next number."""
        numbered = document | {"sequence_number": self.next}
        self.next += 1
        return StreamReader.event_of(numbered, str(document["type"]))


class ResponsesReader(StreamReader):
    """The stream of one answer.

    Parameters
    ----------
    numbers
        Of the events that the client has got from earlier answers to the same request.
    items
        The items of those answers that it has got.
    first
        The response as it began for the client: its id stays, because clients reject another one.
    """

    def __init__(
        self,
        numbers: EventNumbers | None = None,
        items: Sequence[Message] = (),
        first: dict[str, object] | None = None,
    ) -> None:
        super().__init__()
        self._first = first or {}
        self._is_continued = numbers is not None
        self._numbers = numbers or EventNumbers()
        self._earlier = [*items]
        self._items: dict[int, Message] = {}
        self._held_at: list[tuple[int, dict[str, object]]] = []
        self._passed: list[Message] = []
        self._last: dict[str, object] = {}
        self._opened: dict[str, object] = {}
        self._open: int | None = None
        self._said_before = 0, 0

    def passes_unread(self, data: bytes) -> bool:
        """Return whether a part consists of whole deltas, before the first call."""
        if not self._first or self._is_continued or self.answer.calls or not data.endswith(b"\n\n"):
            return False
        events = data.count(b"\n\n")
        if not data.startswith(b"event: ") or not events == data.count(b"event: ") == data.count(b".delta\n"):
            return False
        last = self.document_of(data[data.rfind(b"event: ") :])
        if last is None:
            return False
        self._numbers.passed(last)
        said = self.answer.said
        for kind, delta in _DELTAS.findall(data):
            (said.text if kind == b"output_text" else said.thinking).add(joined_strings((delta,)))
        return True

    def read(self, event: bytes, document: dict[str, object] | None, data: bytes) -> bytes:
        """Return the part of an event that is passed on immediately; hold the rest."""
        if document is None:
            return event
        kind = text_field(document, "type")
        response = document.get("response")
        if isinstance(response, dict):
            self.answer.id, self.answer.model = text_field(response, "id"), text_field(response, "model")
            self.answer.usage = usage_of(response.get("usage"))
            self._first = self._first or {
                name: response[name] for name in ("id", "created_at") if name in response
            }
            self.answer.shown_id = text_field(self._first, "id")
        if kind in ("response.created", "response.in_progress", "response.queued"):
            self._opened = response if isinstance(response, dict) else self._opened
            return b"" if self._is_continued else self._as_it_came(event, document)
        return self._lead_events() + self._read_content(kind, event, document)

    def _lead_events(self) -> bytes:
        if not self.lead or not self.answer.id:
            return b""
        item = message_item(self.answer.id, 0, self.lead)
        self._earlier, self._is_continued, self.lead = [item], True, ""
        return b"".join(item_events(self._numbers, 0, item))

    def _read_content(self, kind: str, event: bytes, document: dict[str, object]) -> bytes:
        response = document.get("response")
        if kind in ("response.failed", "error"):
            self.has_failed = self.has_ended = True
        if kind in _LAST and isinstance(response, dict):
            return self._read_last(event, document, response)
        if "output_index" not in document:
            return self._renumbered(event, document)
        return self._read_item(kind, event, document)

    def _read_last(self, event: bytes, document: dict[str, object], response: dict[str, object]) -> bytes:
        self._last, self.has_ended = document, True
        for place, item in enumerate(dicts(response.get("output"))):
            self._items.setdefault(place, item)
        if self.answer.calls:
            self.held.append(event)
            self.is_due = True
            return b""
        if not self._is_continued:
            return self._as_it_came(event, document)
        return self._numbers.event(self._ended([*self._earlier, *dicts(response.get("output"))]))

    def _ended(self, output: list[Message]) -> dict[str, object]:
        return self._last | {
            "response": object_field(self._last, "response") | self._first | {"output": output}
        }

    def _read_item(self, kind: str, event: bytes, document: dict[str, object]) -> bytes:
        if kind in _TEXTS:
            said = self.answer.said
            (said.text if _TEXTS[kind] == "text" else said.thinking).add(text_field(document, "delta"))
        index = whole_number(document.get("output_index"))
        item = document.get("item")
        if isinstance(item, dict):
            if kind == "response.output_item.added":
                said = self.answer.said
                self._said_before = len(said.text.whole), len(said.thinking.whole)
            if kind == "response.output_item.added" and item.get("type") in CALL_ITEMS:
                self.answer.calls.append(ToolCall("", "", "", index, kind=str(item["type"])))
            self._items[index] = item
        if self.answer.calls:
            self.held.append(event)
            self._held_at.append((index, document))
            return b""
        if kind == "response.output_item.done" and isinstance(item, dict):
            self._passed.append(item)
        self._open = None if kind == "response.output_item.done" else index
        return self._renumbered(event, document)

    def _as_it_came(self, event: bytes, document: dict[str, object]) -> bytes:
        self._numbers.passed(document)
        return event

    def _renumbered(self, event: bytes, document: dict[str, object]) -> bytes:
        if not self._is_continued:
            return self._as_it_came(event, document)
        if "output_index" in document:
            document = document | {
                "output_index": len(self._earlier) + whole_number(document["output_index"])
            }
        return self._numbers.event(document)

    def finish(self) -> None:
        """Complete the answer when the verdicts are due."""
        self.answer.calls = [
            call_of(self._items[call.place], call.place)
            for call in self.answer.calls
            if call.place in self._items
        ]

    def forwarded(self) -> bytes:
        """Return the held events; items are whole, and clients distinguish them by number."""
        if not self._is_continued:
            return b"".join(self.held)
        return self.resolved(Resolution("some"))

    def resolved(self, resolution: Resolution) -> bytes:
        """Return what the client gets instead of the held events."""
        blocked = {self.answer.calls[n].place for n in resolution.blocked}
        output = [*self._earlier, *self._passed]
        places: dict[int, int] = {}
        out: list[bytes] = []
        for at, document in self._held_at:
            if at not in blocked:
                place = places.setdefault(at, len(output) + len(places))
                out.append(self._numbers.event(document | {"output_index": place}))
        output += [self._items[at] for at in places]
        if resolution.action == "text":
            item = message_item(self.answer.id, len(output), resolution.text)
            out += item_events(self._numbers, len(output), item)
            output.append(item)
        return b"".join((*out, self._numbers.event(self._ended(output))))

    def next_reader(self) -> ResponsesReader:
        """Return the reader of the next answer."""
        reader = ResponsesReader(self._numbers, [*self._earlier, *self._passed], self._first)
        reader._last = self._last
        return reader

    def ended_with(self, text: str) -> bytes:
        """Return a text and the end of the stream."""
        item = message_item(text_field(self._last.get("response"), "id"), len(self._earlier), text)
        events = item_events(self._numbers, len(self._earlier), item)
        return b"".join((*events, self._numbers.event(self._ended([*self._earlier, item]))))

    def cut_with(self, text: str) -> bytes:
        """Return the end of the open item, a message and the end of the stream."""
        out: list[bytes] = []
        output = [*self._earlier, *self._passed]
        if self._open is not None:
            item = self._cut_item(self._items.get(self._open, {}))
            done = {"type": "response.output_item.done", "output_index": len(output), "item": item}
            out.append(self._numbers.event(done))
            output.append(item)
        note = message_item(self.answer.id, len(output), text)
        out += item_events(self._numbers, len(output), note)
        state = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        response = self._opened | self._first | state | {"output": [*output, note]}
        return b"".join((*out, self._numbers.event({"type": "response.incomplete", "response": response})))

    def _cut_item(self, item: Message) -> Message:
        """Return an item as it is when it ends here."""
        said, (text_at, thinking_at) = self.answer.said, self._said_before
        if item.get("type") == "reasoning":
            return item | {"summary": [{"type": "summary_text", "text": said.thinking.whole[thinking_at:]}]}
        part = {"type": "output_text", "text": said.text.whole[text_at:], "annotations": []}
        return item | {"status": "incomplete", "content": [part]}

    def error_event(self, document: dict[str, object]) -> bytes:
        """Return an event `error`: with the fields of the reference, and with the object that SDKs raise."""
        error = object_field(document, "error")
        fields = {name: error[name] for name in ("code", "message", "param")}
        return self._numbers.event(document | fields)


def item_events(numbers: EventNumbers, index: int, item: Message) -> list[bytes]:
    """Return the events of a whole message."""
    part = dicts(item["content"])[0]
    at = {"output_index": index, "item_id": item["id"], "content_index": 0}
    empty = part | {"text": ""}
    opened = item | {"status": "in_progress", "content": []}
    return [
        numbers.event(document)
        for document in (
            {"type": "response.output_item.added", "output_index": index, "item": opened},
            {"type": "response.content_part.added", **at, "part": empty},
            {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []},
            {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **at, "part": part},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        )
    ]
