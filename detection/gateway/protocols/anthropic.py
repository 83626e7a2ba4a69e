"""Anthropic's messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import orjson

from detection.gateway.protocols.answers import (
    NOT_RUN,
    Answer,
    Message,
    Resolution,
    TokenUsage,
    ToolCall,
    canonical_arguments,
    dicts,
    object_field,
    text_field,
    whole_number,
    with_note,
)
from detection.gateway.protocols.rewrites import Rewrites
from detection.gateway.protocols.stream import StreamReader
from detection.integrations.transcripts import MessageShape, with_programs_named

CALL_BLOCK: Final = "tool_use"
_TEXT_DELTA: Final = re.compile(
    rb'event: content_block_delta\ndata: \{"type":"content_block_delta","index":(\d{1,9}),"delta":'
    rb'\{"type":"text_delta","text":"((?:[^"\\]|\\.)*+)"\} *+\} *+\n\n'
)
"""As Anthropic sends them, with spaces at the end; any other form is read in full."""
"""Other calls, such as ``server_tool_use``, run at the model server and cannot be held."""


class Anthropic:
    """Requests and whole responses."""

    shape: MessageShape = "anthropic"
    list_shape: MessageShape = "anthropic"
    path_fields: Mapping[str, object] = MappingProxyType({})
    no_tools: Any = {"tool_choice": {"type": "none"}}
    list_key = "messages"

    def messages(self, request: dict[str, object]) -> list[Message] | None:
        """Return the conversation of a request; None if it has none."""
        found = request.get("messages")
        return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None

    def previous_response(self, request: dict[str, object]) -> str:
        """Return the id of the message that a request continues (`thread`), or empty."""
        return text_field(request.get("thread"), "previous_message_id")

    def names_its_tool(self, request: dict[str, object]) -> bool:
        """Return whether the model has to call the one tool that the request names."""
        return text_field(request.get("tool_choice"), "type") == "tool"

    def is_kept(self, request: dict[str, object]) -> bool:
        """Return whether the model server keeps the conversation, so that later requests may name its messages."""
        return isinstance(request.get("thread"), dict)

    def with_previous(self, known_id: str) -> dict[str, object]:
        """Return the fields of a request that continues another message, or none."""
        continued = {"type": "continue", "previous_message_id": known_id}
        return {"thread": continued if known_id else {"type": "create"}}

    def with_results_first(self, results: list[Message], messages: Sequence[Message]) -> list[Message]:
        """Return messages with results before them: in the message of the user that follows, if there is one."""
        if not results:
            return [*messages]
        content = messages[0].get("content") if messages and messages[0].get("role") == "user" else None
        if not isinstance(content, (str, list)):
            return [*self.result_messages(results), *messages]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        return [messages[0] | {"content": [*results, *blocks]}, *messages[1:]]

    def system_text(self, request: dict[str, object]) -> str:
        """Return the instructions, which help to distinguish conversations."""
        system = request.get("system")
        return system if isinstance(system, str) else repr([text_field(one, "text") for one in dicts(system)])

    def call_ids(self, message: Message) -> list[str]:
        """Return the ids of the calls in a message."""
        if message.get("role") != "assistant":
            return []
        return [text_field(block, "id") for block in _calls(message)]

    def answer_of_message(self, message: Message) -> Answer:
        """Read the calls of an answer in the conversation."""
        return Answer(calls=[_call(block, place) for place, block in enumerate(_calls(message))])

    def for_guard(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the guard reads them: of the model's only the calls, which clients do not change."""
        return [
            {"role": "assistant", "content": [_guard_block(block) for block in _calls(message)]}
            if message.get("role") == "assistant"
            else message
            for message in with_programs_named(messages, "anthropic")
        ]

    def rewritten(self, messages: Sequence[Message], rewrites: Rewrites) -> list[Message]:
        """Return the conversation with the additions unknown to the client; unchanged messages are the same objects."""
        out: list[Message] = []
        results: list[Message] = []
        for message in messages:
            found = rewrites.of_answer(self.call_ids(message))
            if found is not None:
                out += found.before
                if found.calls:
                    blocks = message.get("content")
                    known = blocks if isinstance(blocks, list) else []
                    others = [block for block in known if block not in _calls(message)]
                    message = message | {"content": [*others, *found.merged(_calls(message))]}
                results = found.results
            elif message.get("role") == "user" and isinstance(message.get("content"), (list, str)):
                message, results = self._with_results(message, rewrites, results), []
            out.append(message)
        return out

    def _with_results(self, message: Message, rewrites: Rewrites, results: list[Message]) -> Message:
        content = message["content"]
        if not results and not isinstance(content, list):
            return message
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        changed = [*results]
        for block in blocks:
            is_result = isinstance(block, dict) and block.get("type") == "tool_result"
            note = rewrites.note_of(text_field(block, "tool_use_id")) if is_result else ""
            if is_result:
                # The model server keeps the conversation (`thread`), and the list has results only.
                changed += rewrites.results_beside(text_field(block, "tool_use_id"))
            changed.append(block | {"content": with_note(block.get("content"), note)} if note else block)
        is_same = len(changed) == len(blocks) and all(a is b for a, b in zip(changed, blocks, strict=True))
        return message if is_same else message | {"content": changed}

    def call_document(self, call: ToolCall, arguments: str) -> Message:
        """Return a call that the client did not receive, as part of an answer."""
        return {"type": CALL_BLOCK, "id": call.id, "name": call.name, "input": _input(arguments)}

    def answer_messages(self, calls: Sequence[Message], _: str = "") -> list[Message]:
        """Return an answer that consists of calls only."""
        return [{"role": "assistant", "content": [*calls]}]

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Message]:
        """Return results of calls that did not run."""
        return [
            {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}
            for call, text in zip(calls, texts, strict=True)
        ]

    def result_messages(self, results: list[Message]) -> list[Message]:
        """Return the messages that carry results."""
        return [{"role": "user", "content": results}]

    def continued(self, request: dict[str, object], messages: list[Message], _: Answer) -> dict[str, object]:
        """Return a request with other messages."""
        return request | {"messages": messages}

    def answer(self, response: dict[str, object], _request: dict[str, object]) -> Answer:
        """Read a whole response."""
        answer = Answer(text_field(response, "id"), text_field(response, "model"))
        answer.usage = usage_of(response.get("usage"), TokenUsage())
        for place, block in enumerate(dicts(response.get("content"))):
            if block.get("type") == CALL_BLOCK:
                answer.calls.append(_call(block, place))
            answer.said.text.add(text_field(block, "text"))
            answer.said.thinking.add(text_field(block, "thinking"))
        answer.messages = _with_thinking(dicts(response.get("content")))
        return answer

    def respond(
        self, response: dict[str, object], answer: Answer, resolution: Resolution
    ) -> dict[str, object]:
        """Return a whole response as the client gets it."""
        blocked = {answer.calls[n].place for n in resolution.blocked}
        kept = [block for place, block in enumerate(dicts(response.get("content"))) if place not in blocked]
        if resolution.action == "some":
            return response | {"content": kept}
        kept.append({"type": "text", "text": resolution.text})
        return response | {"content": kept, "stop_reason": "end_turn", "stop_sequence": None}

    def with_lead(self, response: dict[str, object], lead: str) -> dict[str, object]:
        """Return a whole response with a text before the answer."""
        return response | {"content": [{"type": "text", "text": lead}, *dicts(response.get("content"))]}

    def text_response(self, model: str, end: Resolution, response_id: str) -> dict[str, object]:
        """Return a response of the gateway's own. The protocol has no end that is an error."""
        return _message(model, response_id) | {
            "content": [{"type": "text", "text": end.text}],
            "stop_reason": "end_turn",
        }

    def text_stream(self, model: str, end: Resolution, response_id: str) -> bytes:
        """Return the same as a stream."""
        start: Message = {"type": "message_start", "message": _message(model, response_id)}
        usage = {"output_tokens": 0}
        return b"".join(
            (
                _event(start),
                *_text_events(0, end.text),
                *_end_events({"type": "message_delta", "usage": usage}),
            )
        )

    def reader(self, request: dict[str, object]) -> AnthropicReader:
        """Return a reader of the stream that answers a request."""
        return AnthropicReader()


class AnthropicReader(StreamReader):
    """The stream of one answer.

    Parameters
    ----------
    first_index
        Number of the blocks that the client has got from earlier answers to the same request.
    shown_id
        The id under which it has got the first of them.
    """

    def __init__(self, first_index: int = 0, shown_id: str = "") -> None:
        super().__init__()
        self._first, self._is_continued = first_index, bool(shown_id)
        self._shown_id = shown_id
        self._passed = first_index
        self._blocks: dict[int, Message] = {}
        self._inputs: dict[int, list[str]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._held_at: list[tuple[int, dict[str, object], bytes]] = []
        self._message_delta: dict[str, object] = {}
        self._open: int | None = None

    def passes_unread(self, data: bytes) -> bool:
        """Return whether a part consists of whole deltas of the text of one block, before the first call."""
        if self._first or self.answer.calls:
            return False
        deltas = _TEXT_DELTA.findall(data)
        if not deltas or len(deltas) != data.count(b"\n\n") or len({index for index, _ in deltas}) > 1:
            return False
        index = int(deltas[0][0])
        try:
            text = orjson.loads(b'"%b"' % b"".join([text for _, text in deltas]))
        except ValueError:
            return False
        if index not in self._blocks:
            return False
        self._add_text(index, "text", text)
        return True

    def read(self, event: bytes, document: dict[str, object] | None, data: bytes) -> bytes:
        """Return the part of an event that is passed on immediately; hold the rest."""
        if document is None:
            return event
        kind = document.get("type")
        if kind == "message_start":
            message = object_field(document, "message")
            self.answer.id, self.answer.model = text_field(message, "id"), text_field(message, "model")
            self.answer.shown_id = self._shown_id = self._shown_id or self.answer.id
            self.answer.usage = usage_of(message.get("usage"), self.answer.usage)
            return b"" if self._is_continued else event + self._lead_events()
        if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            return self._read_block(str(kind), event, document)
        if kind == "message_delta":
            self.answer.usage = usage_of(document.get("usage"), self.answer.usage)
            if self.answer.calls:
                self._message_delta = document
                self.held.append(event)
                self.is_due = True
                return b""
        self.has_ended = self.has_ended or kind == "message_stop"
        return event

    def _lead_events(self) -> bytes:
        if not self.lead:
            return b""
        self._first = self._passed = 1
        lead, self.lead = self.lead, ""
        return b"".join(_text_events(0, lead))

    def _read_block(self, kind: str, event: bytes, document: dict[str, object]) -> bytes:
        index = whole_number(document.get("index"))
        self._open = None if kind == "content_block_stop" else index
        if kind == "content_block_start":
            self._start(index, object_field(document, "content_block"))
        elif kind == "content_block_delta":
            self._extend(index, object_field(document, "delta"))
        if self.answer.calls:
            self.held.append(event)
            self._held_at.append((index, document, event))
            return b""
        self._passed = self._first + index + 1
        return event if not self._first else _event(document | {"index": self._first + index})

    def _start(self, index: int, block: Message) -> None:
        self._blocks[index] = dict(block)
        self._inputs[index] = []
        if block.get("type") == CALL_BLOCK:
            self.answer.calls.append(ToolCall(text_field(block, "id"), text_field(block, "name"), "", index))

    def _extend(self, index: int, delta: dict[str, object]) -> None:
        block = self._blocks.setdefault(index, {})
        for name, value in delta.items():
            if name == "partial_json" and isinstance(value, str):
                self._inputs.setdefault(index, []).append(value)
            elif name == "citation":
                block["citations"] = [*dicts(block.get("citations")), value]
            elif name != "type" and isinstance(value, str):
                self._add_text(index, name, value)

    def _add_text(self, index: int, name: str, text: str) -> None:
        self._texts.setdefault((index, name), []).append(text)
        if name == "text":
            self.answer.said.text.add(text)
        elif name == "thinking":
            self.answer.said.thinking.add(text)

    def finish(self) -> None:
        """Complete the answer when the verdicts are due."""
        for (index, name), texts in self._texts.items():
            self._blocks[index][name] = text_field(self._blocks[index], name) + "".join(texts)
        for index, parts in self._inputs.items():
            if "input" in self._blocks[index] and parts:
                self._blocks[index]["input"] = _input("".join(parts))
        for call in self.answer.calls:
            parts = self._inputs.get(call.place, [])
            given = self._blocks[call.place].get("input")
            call.arguments = "".join(parts) or orjson.dumps(given or {}).decode()
        self.answer.messages = _with_thinking([self._blocks[index] for index in sorted(self._blocks)])

    def forwarded(self) -> bytes:
        """Return the held events; the protocol guarantees whole blocks in order."""
        if not self._first:
            return b"".join(self.held)
        blocks = [_event(document | {"index": self._first + at}) for at, document, _ in self._held_at]
        return b"".join((*blocks, _event(self._message_delta)))

    def resolved(self, resolution: Resolution) -> bytes:
        """Return what the client gets instead of the held events."""
        blocked = {self.answer.calls[n].place for n in resolution.blocked}
        places: dict[int, int] = {}
        out: list[bytes] = []
        for at, document, _ in self._held_at:
            if at not in blocked:
                place = places.setdefault(at, self._passed + len(places))
                out.append(_event(document | {"index": place}))
        if resolution.action == "some":
            return b"".join((*out, _event(self._message_delta)))
        out += _text_events(self._passed + len(places), resolution.text)
        return b"".join((*out, *_end_events(self._message_delta)[:1]))

    def next_reader(self) -> AnthropicReader:
        """Return the reader of the next answer."""
        return AnthropicReader(self._passed, self._shown_id)

    def ended_with(self, text: str) -> bytes:
        """Return a text and the end of the stream."""
        usage = {"output_tokens": self.answer.usage.output_tokens}
        end = _end_events({"type": "message_delta", "usage": usage})
        return b"".join((*_text_events(self._passed, text), *end))

    def cut_with(self, text: str) -> bytes:
        """Return the end of the open block, a text and the end of the stream."""
        stop = (
            [] if self._open is None else [{"type": "content_block_stop", "index": self._first + self._open}]
        )
        usage = {"output_tokens": self.answer.usage.output_tokens}
        end = _end_events({"type": "message_delta", "usage": usage}, "max_tokens")
        return b"".join((*map(_event, stop), *_text_events(self._passed, text), *end))

    def error_event(self, document: dict[str, object]) -> bytes:
        """Return an event `error`."""
        return _event(document)

    def keep_alive(self) -> bytes:
        """Return a ping."""
        return _event({"type": "ping"})


def _with_thinking(content: list[Message]) -> list[Message]:
    """Return an answer that begins with signed reasoning: the model server accepts its calls only together with it."""
    is_needed = any(block.get("type") in ("thinking", "redacted_thinking") for block in content)
    return [{"role": "assistant", "content": content}] if is_needed else []


def _event(document: dict[str, object]) -> bytes:
    return StreamReader.event_of(document, str(document["type"]))


def _text_events(index: int, text: str) -> list[bytes]:
    start = {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
    return [_event(start), _event(delta), _event({"type": "content_block_stop", "index": index})]


def _end_events(message_delta: dict[str, object], reason: str = "end_turn") -> list[bytes]:
    delta = {**object_field(message_delta, "delta"), "stop_reason": reason, "stop_sequence": None}
    return [_event(message_delta | {"delta": delta}), _event({"type": "message_stop"})]


def _message(model: str, response_id: str) -> dict[str, object]:
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _calls(message: Message) -> list[Message]:
    return [block for block in dicts(message.get("content")) if block.get("type") == CALL_BLOCK]


def _call(block: Message, place: int) -> ToolCall:
    arguments = orjson.dumps(block.get("input") or {}, default=str).decode()
    return ToolCall(text_field(block, "id"), text_field(block, "name"), arguments, place)


def _guard_block(block: Message) -> Message:
    return {"type": CALL_BLOCK, "id": block.get("id"), "name": block.get("name"), "input": block.get("input")}


def _input(text: str) -> Any:
    try:
        return orjson.loads(canonical_arguments(text or "{}"))
    except ValueError:
        return {NOT_RUN: text}


def usage_of(usage: Any, before: TokenUsage) -> TokenUsage:
    """Read a usage; missing counts are unchanged."""
    if not isinstance(usage, dict):
        return before
    cached = whole_number(usage.get("cache_read_input_tokens"))
    written = whole_number(usage.get("cache_creation_input_tokens"))
    whole = whole_number(usage.get("input_tokens")) + written + cached
    return TokenUsage(
        whole or before.input_tokens,
        cached or before.cached_tokens,
        whole_number(usage.get("output_tokens")) or before.output_tokens,
        written or before.cache_write_tokens,
    )
