"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import orjson

from detection.gateway.protocols.answers import (
    Answer,
    Message,
    Resolution,
    ToolCall,
    dicts,
    text_field,
    with_note,
)
from detection.gateway.protocols.responses_items import (
    CALL_ITEMS,
    NO_USAGE,
    call_of,
    empty_response,
    guard_item,
    message_item,
    usage_of,
)
from detection.gateway.protocols.responses_stream import EventNumbers, ResponsesReader, item_events
from detection.gateway.protocols.rewrites import Rewrite, Rewrites
from detection.integrations.transcripts import MessageShape, with_programs_named

_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
}
"""Items that carry a plain text as the result of a call."""


class Responses:
    """Requests and whole responses."""

    shape: MessageShape = "responses"
    list_shape: MessageShape = "responses"
    path_fields: Mapping[str, object] = MappingProxyType({})
    no_tools: Any = {"tool_choice": "none"}
    list_key = "input"

    def messages(self, request: dict[str, object]) -> list[Message] | None:
        """Return the items of a request; None if it has none."""
        found = request.get("input")
        if isinstance(found, str):
            return [{"type": "message", "role": "user", "content": found}]
        return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None

    def previous_response(self, request: dict[str, object]) -> str:
        """Return the id of the response that a request continues, or empty."""
        return text_field(request, "previous_response_id")

    def names_its_tool(self, request: dict[str, object]) -> bool:
        """Return whether the model has to call the one tool that the request names."""
        return text_field(request.get("tool_choice"), "type") in ("function", "custom")

    def is_kept(self, request: dict[str, object]) -> bool:
        """Return whether the model server keeps the conversation, so that later requests may name its responses."""
        return request.get("store") is not False

    def with_previous(self, known_id: str) -> dict[str, object]:
        """Return the fields of a request that continues another response, or none."""
        return {"previous_response_id": known_id or None}

    def with_results_first(self, results: list[Message], items: Sequence[Message]) -> list[Message]:
        """Return items with results before them."""
        return [*results, *items]

    def system_text(self, request: dict[str, object]) -> str:
        """Return the instructions, which help to distinguish conversations."""
        return text_field(request, "instructions")

    def call_ids(self, item: Message) -> list[str]:
        """Return the ids of the calls in an item."""
        return [text_field(item, "call_id")] if item.get("type") in CALL_ITEMS else []

    def answer_of_message(self, item: Message) -> Answer:
        """Read the call of an item in the conversation."""
        return Answer(calls=[call_of(item, 0)] if item.get("type") in CALL_ITEMS else [])

    def for_guard(self, items: Sequence[Message]) -> list[Message]:
        """Return items as the guard reads them: of the model's messages only the calls, which clients do not change."""
        return [
            guard_item(item) if item.get("type") in CALL_ITEMS else item
            for item in with_programs_named(items, "responses")
            if item.get("role") != "assistant" and item.get("type") != "reasoning"
        ]

    def rewritten(self, items: Sequence[Message], rewrites: Rewrites) -> list[Message]:
        """Return the conversation with the additions unknown to the client; unchanged items are the same objects."""
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
        """Return a call that the client did not receive, as an item."""
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

    def continued(
        self, request: dict[str, object], messages: list[Message], answer: Answer
    ) -> dict[str, object]:
        """Return a request with other items. A model server that keeps the conversation knows all but the results."""
        if request.get("previous_response_id") or request.get("conversation"):
            results = [item for item in messages if str(item.get("type")).endswith("_call_output")]
            known = {call.id for call in answer.calls}
            more = {"input": [item for item in results if item.get("call_id") in known]}
            return (
                request | more | ({} if request.get("conversation") else {"previous_response_id": answer.id})
            )
        return request | {"input": messages}

    def answer(self, response: dict[str, object], _request: dict[str, object]) -> Answer:
        """Read a whole response."""
        answer = Answer(text_field(response, "id"), text_field(response, "model"))
        answer.usage = usage_of(response.get("usage"))
        output = dicts(response.get("output"))
        answer.calls = [
            call_of(item, place) for place, item in enumerate(output) if item.get("type") in CALL_ITEMS
        ]
        for item in output:
            said = answer.said.thinking if item.get("type") == "reasoning" else answer.said.text
            for part in (*dicts(item.get("content")), *dicts(item.get("summary"))):
                said.add(text_field(part, "text"))
        return answer

    def respond(
        self, response: dict[str, object], answer: Answer, resolution: Resolution
    ) -> dict[str, object]:
        """Return a whole response as the client gets it."""
        blocked = {answer.calls[n].place for n in resolution.blocked}
        kept = [item for place, item in enumerate(dicts(response.get("output"))) if place not in blocked]
        if resolution.action == "text":
            kept.append(message_item(answer.id, len(kept), resolution.text))
            response = response | {"output_text": resolution.text} if "output_text" in response else response
        return response | {"output": kept}

    def with_lead(self, response: dict[str, object], lead: str) -> dict[str, object]:
        """Return a whole response with a text before the answer."""
        item = message_item(text_field(response, "id"), 0, lead)
        return response | {"output": [item, *dicts(response.get("output"))]}

    def text_response(self, model: str, end: Resolution, response_id: str) -> dict[str, object]:
        """Return a response of the gateway's own. A failed one would hide the text from most clients."""
        return empty_response(model, response_id) | {
            "status": "completed",
            "output": [message_item(response_id, 0, end.text)],
            "usage": NO_USAGE,
        }

    def text_stream(self, model: str, end: Resolution, response_id: str) -> bytes:
        """Return the same as a stream."""
        done = self.text_response(model, end, response_id)
        numbers = EventNumbers()
        start: Message = {"type": "response.created", "response": empty_response(model, response_id)}
        last: Message = {"type": "response.completed", "response": done}
        return b"".join(
            (numbers.event(start), *item_events(numbers, 0, dicts(done["output"])[0]), numbers.event(last))
        )

    def reader(self, request: dict[str, object]) -> ResponsesReader:
        """Return a reader of the stream that answers a request."""
        return ResponsesReader()


class _OpenAnswer:
    """Inserts calls unknown to the client between the calls of the same answer, each of which is a separate item."""

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
