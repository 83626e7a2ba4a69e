"""Streams of chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from detection.gateway.protocols.answers import (
    Resolution,
    ToolCall,
    dicts,
    object_field,
    text_field,
    whole_number,
)
from detection.gateway.protocols.chat_items import call_document, reasoning_of, usage_of
from detection.gateway.protocols.stream import StreamReader, joined_strings

_READ_FIELDS: Final = (
    b'"tool_calls"',
    b'"finish_reason"',
    b'"usage"',
    b'"reasoning_content"',
    b'"reasoning"',
    b'"error"',
)
"""The fields of a chunk that the reader needs. Inside text, their quotation marks are escaped."""
_TEXTS: Final = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*+)"')
_CONTENT: Final = re.compile(rb'"content": ?"(?=[^"\\]*")')


class ChatReader(StreamReader):
    """The stream of one answer.

    Parameters
    ----------
    head
        Fields of the chunks of an earlier answer to the same request.
    begun
        Choices whose role the client has already received: some clients concatenate all roles.
    """

    def __init__(
        self, request: dict[str, object], head: dict[str, object] | None = None, begun: Iterable[int] = ()
    ) -> None:
        super().__init__()
        self._request = request
        options = request.get("stream_options")
        self._awaits_usage = bool(isinstance(options, dict) and options.get("include_usage"))
        self._choice_count = max(1, whole_number(request.get("n")))
        self._calls: dict[tuple[int, int], ToolCall] = {}
        self._fragments: dict[tuple[int, int], list[tuple[str, str]]] = {}
        """Of name and arguments."""
        self._order: list[tuple[int, int]] = []
        self._finished: set[int] = set()
        self._has_text = False
        self._frame = b"", b""
        """What surrounds the text in the latest chunk that only carried text."""
        self._reasoning: list[str] = []
        self._head: dict[str, object] = head or {}
        self._finish_events: dict[int, bytes] = {}
        self._tail: list[bytes] = []
        self._begun = set(begun)
        self._removes_roles = bool(self._begun)

    def passes_unread(self, data: bytes) -> bool:
        """Return whether a part consists of whole chunks whose fields, but for the text, are null."""
        if self._calls:
            return False
        head, tail = self._frame
        if head and data.startswith(head) and data.endswith(tail):
            text = data[len(head) : -len(tail)]
            # The chunk before with another text: neither ends the string, so nothing else can differ.
            if b'"' not in text and b"\\" not in text and len(data) >= len(head) + len(tail):
                self.answer.said.text.add(text.decode("utf-8", "replace"))
                return True
        if not self.answer.id or self._choice_count > 1 or not data.endswith(b"\n\n") or b"[DONE]" in data:
            return False
        # A field that is null loses its second quotation mark, by which it is found.
        set_fields = data.replace(b'":null', b"").replace(b'": null', b"")
        for field in _READ_FIELDS:
            if field in set_fields:
                return False
        self._has_text = True
        self.answer.said.text.add(joined_strings(_TEXTS.findall(data)))
        if data.count(b"\n\n") == 1 and (found := _CONTENT.search(data)):
            self._frame = data[: found.end()], data[data.index(b'"', found.end()) :]
        return True

    def without_hidden(self, data: bytes) -> bytes:
        """Return events without an empty usage that the client has not asked for."""
        for text in _NULL_USAGE if self.hides_usage else ():
            data = data.replace(text, b"")
        return data

    def read(self, event: bytes, document: dict[str, object] | None, data: bytes) -> bytes:
        """Return the part of an event that is passed on immediately; hold the rest."""
        if document is None:
            if data != b"[DONE]":
                return event
            self.has_ended = True
            self.is_due = bool(self._calls)
            return self._held_tail(event)
        self._read_head(document)
        choices = dicts(document.get("choices"))
        event = self.without_hidden(event)
        if not choices:
            self.is_due = bool(self._calls) and self._is_finished and bool(document.get("usage"))
            return b"" if self.hides_usage and document.get("usage") else self._held_tail(event)
        lead = [self._chunk(0, self._begin(0) | {"content": self.lead})] if self.lead else []
        self._has_text, self.lead = self._has_text or bool(lead), ""
        self._removes_roles = self._removes_roles or bool(lead)
        if self._removes_roles and b'"role"' in event:
            choices = [self._without_role(choice) for choice in choices]
            event = self.without_hidden(self.event_of(document | {"choices": choices}))
        return b"".join((*lead, self._read_choices(event, choices)))

    def _begin(self, choice: int) -> dict[str, object]:
        """Return what the first chunk of a choice has; empty for a later one."""
        if choice in self._begun:
            return {}
        self._begun.add(choice)
        return {"role": "assistant"}

    def _without_role(self, choice: dict[str, object]) -> dict[str, object]:
        delta = choice.get("delta")
        if not isinstance(delta, dict) or whole_number(choice.get("index")) not in self._begun:
            return choice
        return choice | {"delta": {name: value for name, value in delta.items() if name != "role"}}

    def _held_tail(self, event: bytes) -> bytes:
        """Hold what comes after a finish that is held."""
        if self.has_failed or not self._calls or not self._is_finished:
            return event
        self._tail.append(event)
        return b""

    @property
    def has_whole_calls(self) -> bool:
        """Whether an answer with calls is complete except for its usage."""
        return bool(self._calls) and self._is_finished and not self.has_failed

    @property
    def _is_finished(self) -> bool:
        return len(self._finished) >= self._choice_count

    def _read_head(self, document: dict[str, object]) -> None:
        if not self.answer.id:
            names = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
            self._head = {name: document[name] for name in names if name in document}
            self.answer.id, self.answer.model = text_field(document, "id"), text_field(document, "model")
        if document.get("usage"):
            self.answer.usage = usage_of(document["usage"])

    def _read_choices(self, event: bytes, choices: list[dict[str, object]]) -> bytes:
        is_held = False
        for choice in choices:
            index, delta = whole_number(choice.get("index")), object_field(choice, "delta")
            for fragment in dicts(delta.get("tool_calls")):
                self._read_fragment(index, fragment)
                is_held = True
            self._has_text = self._has_text or bool(text_field(delta, "content"))
            if not index:
                self.answer.said.text.add(text_field(delta, "content"))
                self.answer.said.thinking.add(reasoning_of(delta))
            if reasoning := text_field(delta, "reasoning_content"):
                self._reasoning.append(reasoning)
            if choice.get("finish_reason"):
                self._finished.add(index)
                if any(choice_index == index for choice_index, _ in self._calls):
                    self._finish_events[index] = event
                    is_held = True
        if self._calls and self._is_finished and not (self._awaits_usage or self.hides_usage):
            self.is_due = True
        if not is_held:
            self._begun.update(whole_number(choice.get("index")) for choice in choices)
            return event
        self.held.append(event)
        return b""

    def _read_fragment(self, choice: int, fragment: dict[str, object]) -> None:
        place = fragment.get("index")
        key = (choice, place if isinstance(place, int) else len(self._calls))
        call = self._calls.get(key)
        kind = "custom" if isinstance(fragment.get("custom"), dict) else "function"
        part = fragment.get(kind)
        if call is None:
            call = self._calls[key] = ToolCall("", "", "", key[1], choice, kind)
            self.answer.calls.append(call)
        call.id = call.id or text_field(fragment, "id")
        self._fragments.setdefault(key, []).append(
            (text_field(part, "name"), text_field(part, "input" if kind == "custom" else "arguments"))
        )
        if not self._order or self._order[-1] != key:
            self._order.append(key)

    def finish(self) -> None:
        """Complete the answer at the end of the stream."""
        self.answer.reasoning = "".join(self._reasoning)
        for key, fragments in self._fragments.items():
            names, arguments = zip(*fragments, strict=True)
            self._calls[key].name, self._calls[key].arguments = "".join(names), "".join(arguments)

    def forwarded(self) -> bytes:
        """Return the held events, one whole call after another."""
        if len(self._order) == len(self._calls):
            return b"".join((*self.held, *self._tail))
        return self.resolved(Resolution("forward"))

    def resolved(self, resolution: Resolution) -> bytes:
        """Return what the client gets instead of the held events."""
        out: list[bytes] = []
        for choice in sorted({choice for choice, _ in self._calls}):
            kept = [
                call
                for n, call in enumerate(self.answer.calls)
                if call.choice == choice and n not in resolution.blocked
            ]
            for place, call in enumerate(kept):
                document = {"index": place, **call_document(call, call.arguments)}
                out.append(self._chunk(choice, self._begin(choice) | {"tool_calls": [document]}))
            if kept:
                out.append(self._finish(choice))
            else:
                text = ("\n\n" if self._has_text else "") + (resolution.text or "The calls were not run.")
                out += self._text_events(choice, text, end_reason(resolution))
        return b"".join((*out, *self._tail))

    def _finish(self, choice: int) -> bytes:
        from_server = self._finish_events.get(choice)
        reason: Any = "tool_calls"
        if from_server is not None:
            document = self.document_of(from_server) or {}
            found = [
                one for one in dicts(document.get("choices")) if whole_number(one.get("index")) == choice
            ]
            reason = found[0].get("finish_reason") if found else reason
        return self._chunk(choice, {}, reason)

    def _chunk(self, choice: int, delta: dict[str, object], finish: Any = None) -> bytes:
        return _chunk(self._head, choice, delta, finish)

    def next_reader(self) -> ChatReader:
        """Return the reader of the next answer."""
        return ChatReader(self._request, self._head, self._begun)

    def ended_with(self, text: str) -> bytes:
        """Return a text and the end of the stream."""
        return b"".join((*self._text_events(0, text, "stop"), DONE))

    @property
    def can_be_cut(self) -> bool:
        """Whether the answer has one choice and no calls."""
        return self._choice_count == 1 and not self._calls

    def cut_with(self, text: str) -> bytes:
        """Return a text and the end of the stream, as if the limit of tokens was reached."""
        return b"".join((*self._text_events(0, text, "length"), DONE))

    def _text_events(self, choice: int, text: str, finish: str) -> list[bytes]:
        return text_events(self._head, choice, self._begin(choice) | {"content": text}, finish)


_NULL_USAGE: Final = (b',"usage":null', b', "usage": null')
"""What chunks have when usage was asked for and is not there yet. Strings contain no bare quotes."""
DONE: Final = b"data: [DONE]\n\n"


def _chunk(head: dict[str, object], choice: int, delta: dict[str, object], finish: Any = None) -> bytes:
    choices = [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return StreamReader.event_of(head | {"choices": choices})


def text_events(head: dict[str, object], choice: int, delta: dict[str, object], finish: str) -> list[bytes]:
    """Return the chunks of a text of the gateway's own, with the end of its choice."""
    return [_chunk(head, choice, delta), _chunk(head, choice, {}, finish)]


def end_reason(resolution: Resolution) -> str:
    """Return why an answer that the gateway ends has ended."""
    return "error" if resolution.ends_in_error else "stop"
