"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from detection.gateway.protocols.answers import (
    Answer,
    Message,
    Resolution,
    TokenUsage,
    ToolCall,
    canonical_arguments,
    dicts,
    text_field,
    whole_number,
    with_note,
)
from detection.gateway.protocols.rewrites import Rewrite, Rewrites
from detection.gateway.protocols.stream import StreamReader
from detection.integrations.transcripts import MessageShape

CALL_ITEMS: Final = frozenset(
    (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
    )
)
"""Items that the client runs. Others, such as ``mcp_call``, run at the model server and cannot be held."""
_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
}
"""Items that carry a plain text as the result of a call."""
_LAST: Final = ("response.completed", "response.incomplete")


class Responses:
    """Requests and whole responses."""

    shape: MessageShape = "responses"
    list_key = "input"

    def messages(self, request: dict[str, Any]) -> list[Message] | None:
        """Return the items of a request; None if it has none."""
        found = request.get("input")
        if isinstance(found, str):
            return [{"type": "message", "role": "user", "content": found}]
        return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None

    def system_text(self, request: dict[str, Any]) -> str:
        """Return the instructions: part of what tells conversations apart."""
        return text_field(request, "instructions")

    def call_ids(self, item: Message) -> list[str]:
        """Return the ids of the calls in an item."""
        return [text_field(item, "call_id")] if item.get("type") in CALL_ITEMS else []

    def answer_of_message(self, item: Message) -> Answer:
        """Read the call of an item in the conversation."""
        return Answer(calls=[_call(item, 0)] if item.get("type") in CALL_ITEMS else [])

    def for_guard(self, items: Sequence[Message]) -> list[Message]:
        """Return items as the guard reads them: of the model only its calls, which clients keep as they are."""
        return [
            _guard_item(item) if item.get("type") in CALL_ITEMS else item
            for item in items
            if item.get("role") != "assistant" and item.get("type") != "reasoning"
        ]

    def rewritten(self, items: Sequence[Message], rewrites: Rewrites) -> list[Message]:
        """Return the conversation with what the client does not know; unchanged items are the same objects."""
        out: list[Message] = []
        open_answer: _OpenAnswer | None = None
        for item in items:
            is_call = item.get("type") in CALL_ITEMS
            found = rewrites.of_answer(self.call_ids(item))
            if open_answer is not None and (found is not None or not is_call):
                out += open_answer.rest()
                open_answer = None
            if found is not None:
                out += found.before
                open_answer = _OpenAnswer(found)
            if open_answer is not None:
                out += open_answer.before_next()
            is_output = str(item.get("type")).endswith("_call_output")
            if is_output:
                out += rewrites.results_beside(text_field(item, "call_id"))
            note = rewrites.note_of(text_field(item, "call_id")) if is_output else ""
            out.append(item | {"output": with_note(item.get("output"), note)} if note else item)
        return out if open_answer is None else [*out, *open_answer.rest()]

    def call_document(self, call: ToolCall, arguments: str) -> Message:
        """Return a call that the client did not get, as an item."""
        if call.kind == "function_call":
            return {"type": call.kind, "call_id": call.id, "name": call.name, "arguments": arguments}
        if call.kind == "custom_tool_call":
            return {"type": call.kind, "call_id": call.id, "name": call.name, "input": arguments}
        return {
            "type": call.kind,
            "call_id": call.id,
            "action": orjson.loads(arguments or "{}"),
            "status": "completed",
        }

    def answer_messages(self, calls: Sequence[Message], _: str = "") -> list[Message]:
        """Return an answer that consists of calls only."""
        return [*calls]

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Message]:
        """Return results of calls that did not run."""
        return [
            {"type": _OUTPUTS.get(call.kind, f"{call.kind}_output"), "call_id": call.id, "output": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def result_messages(self, results: list[Message]) -> list[Message]:
        """Return the items that carry results."""
        return results

    def continued(self, request: dict[str, Any], messages: list[Message], answer: Answer) -> dict[str, Any]:
        """Return a request with other items. Where the model server keeps the conversation, it knows all but the results."""
        if request.get("previous_response_id") or request.get("conversation"):
            results = [item for item in messages if str(item.get("type")).endswith("_call_output")]
            known = {call.id for call in answer.calls}
            more = {"input": [item for item in results if item.get("call_id") in known]}
            return (
                request | more | ({} if request.get("conversation") else {"previous_response_id": answer.id})
            )
        return request | {"input": messages}

    def answer(self, response: dict[str, Any]) -> Answer:
        """Read a whole response."""
        answer = Answer(text_field(response, "id"), text_field(response, "model"))
        answer.usage = usage_of(response.get("usage"))
        output = dicts(response.get("output"))
        answer.calls = [
            _call(item, place) for place, item in enumerate(output) if item.get("type") in CALL_ITEMS
        ]
        return answer

    def respond(
        self, response: dict[str, Any], answer: Answer, resolution: Resolution, finish: str
    ) -> dict[str, Any]:
        """Return a whole response as the client gets it."""
        blocked = {answer.calls[n].place for n in resolution.blocked}
        kept = [item for place, item in enumerate(dicts(response.get("output"))) if place not in blocked]
        if resolution.action == "text":
            kept.append(_message_item(answer.id, resolution.text))
            response = response | {"output_text": resolution.text} if "output_text" in response else response
        return response | {"output": kept}

    def text_response(self, model: str, text: str, response_id: str) -> dict[str, Any]:
        """Return a response of the gateway's own."""
        return _response(model, response_id) | {
            "status": "completed",
            "output": [_message_item(response_id, text)],
            "usage": _NO_USAGE,
        }

    def text_stream(self, model: str, text: str, response_id: str) -> bytes:
        """Return the same as a stream."""
        done = self.text_response(model, text, response_id)
        numbers = _Numbers()
        start = {"type": "response.created", "response": _response(model, response_id)}
        last = {"type": "response.completed", "response": done}
        return b"".join(
            (numbers.event(start), *_item_events(numbers, 0, done["output"][0]), numbers.event(last))
        )

    def reader(self, request: dict[str, Any]) -> ResponsesReader:
        """Return a reader of the stream that answers a request."""
        return ResponsesReader()


class _OpenAnswer:
    """Puts calls that the client does not know between the calls of the same answer, which are items of their own."""

    def __init__(self, rewrite: Rewrite) -> None:
        self._calls = [*rewrite.calls]
        self._results = rewrite.results
        self._number = 0

    def before_next(self) -> list[Message]:
        """Return the calls before the next one that the client knows."""
        out = []
        while self._calls and self._calls[0][0] == self._number:
            out.append(self._calls.pop(0)[1])
            self._number += 1
        self._number += 1
        return out

    def rest(self) -> list[Message]:
        """Return the remaining calls, and the results of all."""
        return [*(call for _, call in self._calls), *self._results]


class _Numbers:
    """Numbers the events of a stream anew once something was dropped or added."""

    def __init__(self) -> None:
        self.next = 0

    def passed(self, document: dict[str, Any]) -> None:
        """Note the number of an event that passes as it came."""
        self.next = max(self.next, whole_number(document.get("sequence_number")) + 1)

    def event(self, document: dict[str, Any]) -> bytes:
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
        numbers: _Numbers | None = None,
        items: Sequence[Message] = (),
        first: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._first = first or {}
        self._is_continued = numbers is not None
        self._numbers = numbers or _Numbers()
        self._earlier = [*items]
        self._items: dict[int, Message] = {}
        self._held_at: list[tuple[int, dict[str, Any]]] = []
        self._passed: list[Message] = []
        self._last: dict[str, Any] = {}

    def read(self, event: bytes, document: dict[str, Any] | None, data: bytes) -> bytes:
        """Return what passes at once of an event; hold the rest."""
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
        if kind in ("response.created", "response.in_progress", "response.queued"):
            return b"" if self._is_continued else self._as_it_came(event, document)
        if kind in ("response.failed", "error"):
            self.has_failed = True
        if kind in _LAST and isinstance(response, dict):
            return self._read_last(event, document, response)
        if "output_index" not in document:
            return self._renumbered(event, document)
        return self._read_item(kind, event, document)

    def _read_last(self, event: bytes, document: dict[str, Any], response: dict[str, Any]) -> bytes:
        self._last = document
        for place, item in enumerate(dicts(response.get("output"))):
            self._items.setdefault(place, item)
        if self.answer.calls:
            self.held.append(event)
            self.is_due = True
            return b""
        if not self._is_continued:
            return self._as_it_came(event, document)
        return self._numbers.event(self._ended([*self._earlier, *dicts(response.get("output"))]))

    def _ended(self, output: list[Message]) -> dict[str, Any]:
        return self._last | {"response": self._last["response"] | self._first | {"output": output}}

    def _read_item(self, kind: str, event: bytes, document: dict[str, Any]) -> bytes:
        index = whole_number(document.get("output_index"))
        item = document.get("item")
        if isinstance(item, dict):
            if kind == "response.output_item.added" and item.get("type") in CALL_ITEMS:
                self.answer.calls.append(ToolCall("", "", "", index, kind=str(item["type"])))
            self._items[index] = item
        if self.answer.calls:
            self.held.append(event)
            self._held_at.append((index, document))
            return b""
        if kind == "response.output_item.done" and isinstance(item, dict):
            self._passed.append(item)
        return self._renumbered(event, document)

    def _as_it_came(self, event: bytes, document: dict[str, Any]) -> bytes:
        self._numbers.passed(document)
        return event

    def _renumbered(self, event: bytes, document: dict[str, Any]) -> bytes:
        if not self._is_continued:
            return self._as_it_came(event, document)
        if "output_index" in document:
            document = document | {
                "output_index": len(self._earlier) + whole_number(document["output_index"])
            }
        return self._numbers.event(document)

    @property
    def shown_id(self) -> str:
        """Id of the response that the client has got."""
        return text_field(self._first, "id")

    def finish(self) -> None:
        """Complete the answer when the verdicts are due."""
        self.answer.calls = [
            _call(self._items[call.place], call.place)
            for call in self.answer.calls
            if call.place in self._items
        ]

    def forwarded(self) -> bytes:
        """Return what is held; items are whole, and clients tell them apart by their numbers."""
        if not self._is_continued:
            return b"".join(self.held)
        return self.resolved(Resolution("some"), "")

    def resolved(self, resolution: Resolution, finish: str) -> bytes:
        """Return what the client gets instead of what is held."""
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
            item = _message_item(self.answer.id, resolution.text)
            out += _item_events(self._numbers, len(output), item)
            output.append(item)
        return b"".join((*out, self._numbers.event(self._ended(output))))

    def next_reader(self) -> ResponsesReader:
        """Return the reader of the next answer."""
        reader = ResponsesReader(self._numbers, [*self._earlier, *self._passed], self._first)
        reader._last = self._last
        return reader

    def ended_with(self, text: str) -> bytes:
        """Return a text and the end of the stream."""
        item = _message_item(text_field(self._last.get("response"), "id"), text)
        events = _item_events(self._numbers, len(self._earlier), item)
        return b"".join((*events, self._numbers.event(self._ended([*self._earlier, item]))))


_NO_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def _response(model: str, response_id: str) -> dict[str, Any]:
    return {
        "id": f"resp_{response_id}",
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _message_item(answer_id: str, text: str) -> Message:
    part = {"type": "output_text", "text": text, "annotations": []}
    item_id = f"msg_{answer_id.removeprefix('resp_')}_loopguard"
    return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _item_events(numbers: _Numbers, index: int, item: Message) -> list[bytes]:
    part = item["content"][0]
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


def _call(item: Message, place: int) -> ToolCall:
    kind = str(item.get("type"))
    if kind == "function_call":
        arguments = text_field(item, "arguments")
    elif kind == "custom_tool_call":
        arguments = text_field(item, "input")
    else:
        arguments = orjson.dumps(item.get("action") or item.get("operation") or {}, default=str).decode()
    name = text_field(item, "name") or kind.removesuffix("_call")
    return ToolCall(text_field(item, "call_id"), name, arguments, place, kind=kind)


def _guard_item(item: Message) -> Message:
    if item["type"] == "function_call":
        arguments = canonical_arguments(text_field(item, "arguments"))
        return {
            "type": "function_call",
            "call_id": item.get("call_id"),
            "name": item.get("name"),
            "arguments": arguments,
        }
    call = _call(item, 0)
    return {
        "type": "function_call",
        "call_id": call.id or None,
        "name": call.name,
        "arguments": call.arguments,
    }


def usage_of(usage: Any) -> TokenUsage:
    """Read the usage of a response."""
    if not isinstance(usage, dict):
        return TokenUsage()
    details = usage.get("input_tokens_details")
    return TokenUsage(
        whole_number(usage.get("input_tokens")),
        whole_number(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        whole_number(usage.get("output_tokens")),
    )
