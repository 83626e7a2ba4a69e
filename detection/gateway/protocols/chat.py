"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from detection.gateway.protocols.answers import (
    Answer,
    Message,
    Resolution,
    ToolCall,
    canonical_arguments,
    dicts,
    object_field,
    text_field,
    whole_number,
    with_note,
)
from detection.gateway.protocols.chat_items import (
    TEXT_CALL,
    call_document,
    read_call,
    reasoning_of,
    text_call,
    usage_of,
)
from detection.gateway.protocols.chat_stream import DONE, ChatReader, end_reason, text_events
from detection.gateway.protocols.rewrites import Rewrites
from detection.integrations.text_protocols import native_message, with_native_calls
from detection.integrations.transcripts import MessageShape, text_of_message, with_programs_named

SHAPE: Final[MessageShape] = "openai"


class Chat:
    """Requests and whole responses."""

    shape: MessageShape = SHAPE
    list_shape: MessageShape = SHAPE
    path_fields: Mapping[str, object] = MappingProxyType({})
    no_tools: Any = {"tool_choice": "none"}
    list_key = "messages"

    def messages(self, request: dict[str, object]) -> list[Message] | None:
        """Return the conversation of a request; None if it has none."""
        found = request.get("messages")
        return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None

    def call_ids(self, message: Message) -> list[str]:
        """Return the ids of the calls in a message."""
        if message.get("role") != "assistant":
            return []
        return [text_field(call, "id") for call in dicts(native_message(message).get("tool_calls"))]

    def previous_response(self, request: dict[str, object]) -> str:
        """Return the id of the response that a request continues: none, because clients send the whole conversation."""
        return ""

    def names_its_tool(self, request: dict[str, object]) -> bool:
        """Return whether the model has to call the one tool that the request names."""
        return text_field(request.get("tool_choice"), "type") in ("function", "custom")

    def is_kept(self, request: dict[str, object]) -> bool:
        """Return whether the model server keeps the conversation, so that later requests may name its responses."""
        return False

    def with_previous(self, known_id: str) -> dict[str, object]:
        """Return the fields of a request that continues another response."""
        return {}

    def with_results_first(self, results: list[Message], messages: Sequence[Message]) -> list[Message]:
        """Return messages with results before them."""
        return [*results, *messages]

    def system_text(self, request: dict[str, object]) -> str:
        """Return everything before the first user message, which helps to distinguish conversations."""
        system = [m for m in self.messages(request) or [] if m.get("role") in ("system", "developer")]
        return repr([message.get("content") for message in system[:2]])

    def answer_of_message(self, message: Message) -> Answer:
        """Read the calls of an answer in the conversation."""
        calls = dicts(native_message(message).get("tool_calls"))
        return Answer(calls=[read_call(call, place, 0) for place, call in enumerate(calls)])

    def for_guard(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the guard reads them: of the model's only the calls, which clients do not change."""
        return [
            {"role": "assistant", "tool_calls": [_guard_call(call) for call in dicts(m.get("tool_calls"))]}
            if m.get("role") == "assistant"
            else m
            for m in with_programs_named(with_native_calls(messages), "openai")
        ]

    def rewritten(self, messages: Sequence[Message], rewrites: Rewrites) -> list[Message]:
        """Return the conversation with the additions unknown to the client; unchanged messages are the same objects."""
        out: list[Message] = []
        for message, read in zip(messages, with_native_calls(messages), strict=True):
            found = rewrites.of_answer(self.call_ids(read))
            if found is not None:
                out += found.before
                if found.calls:
                    message = message | {"tool_calls": found.merged(dicts(message.get("tool_calls")))}
            note = rewrites.note_of(text_field(read, "tool_call_id")) if read.get("role") == "tool" else ""
            out.append(message | {"content": with_note(message.get("content"), note)} if note else message)
            if found is not None:
                out += found.results
        return out

    def call_document(self, call: ToolCall, arguments: str) -> Message:
        """Return a call that the client did not receive, as part of an answer."""
        return call_document(call, arguments)

    def answer_messages(self, calls: Sequence[Message], reasoning: str = "") -> list[Message]:
        """Return an answer that consists of calls, and of reasoning that some model servers want back with them."""
        if any(call.get("role") for call in calls):
            return [*calls]  # made in text
        more = {"reasoning_content": reasoning} if reasoning else {}
        return [{"role": "assistant", "content": None, **more, "tool_calls": [*calls]}]

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Message]:
        """Return results of calls that did not run."""
        return [
            {"role": "user", "content": f"Observation:\n{text}"}
            if call.kind == TEXT_CALL
            else {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def result_messages(self, results: list[Message]) -> list[Message]:
        """Return the messages that carry results."""
        return results

    def continued(self, request: dict[str, object], messages: list[Message], _: Answer) -> dict[str, object]:
        """Return a request with other messages."""
        return request | {"messages": messages}

    def answer(self, response: dict[str, object], request: dict[str, object]) -> Answer:
        """Read a whole response to a request. The calls of several choices are those of one answer."""
        answer = Answer(text_field(response, "id"), text_field(response, "model"))
        answer.usage = usage_of(response.get("usage"))
        for choice in dicts(response.get("choices")):
            message = object_field(choice, "message")
            for place, call in enumerate(dicts(message.get("tool_calls"))):
                answer.calls.append(read_call(call, place, whole_number(choice.get("index"))))
            answer.reasoning = answer.reasoning or text_field(message, "reasoning_content")
            if not whole_number(choice.get("index")):
                answer.said.text.add(text_of_message(message))
                answer.said.thinking.add(reasoning_of(message))
        choices = dicts(response.get("choices"))
        if len(choices) == 1 and not answer.calls:
            text = text_of_message(object_field(choices[0], "message"))
            if found := text_call(text, self.system_text(request)):
                answer.calls, answer.messages = [found], [{"role": "assistant", "content": text}]
        return answer

    def respond(
        self, response: dict[str, object], answer: Answer, resolution: Resolution
    ) -> dict[str, object]:
        """Return a whole response as the client gets it."""
        choices = []
        blocked = {(answer.calls[n].choice, answer.calls[n].place) for n in resolution.blocked}
        for choice in dicts(response.get("choices")):
            message = dict(object_field(choice, "message"))
            calls = dicts(message.get("tool_calls"))
            index = whole_number(choice.get("index"))
            kept = [call for place, call in enumerate(calls) if (index, place) not in blocked]
            if blocked and answer.calls[0].kind == TEXT_CALL:
                message["content"] = resolution.text
                choice = choice | {"finish_reason": end_reason(resolution)}
            elif calls and not kept:
                message.pop("tool_calls")
                text = resolution.text or "The calls were not run."
                message["content"] = "\n\n".join(filter(None, (text_field(message, "content"), text)))
                choice = choice | {"finish_reason": end_reason(resolution)}
            elif calls:
                message["tool_calls"] = kept
            choices.append(choice | {"message": message})
        return response | {"choices": choices}

    def with_lead(self, response: dict[str, object], lead: str) -> dict[str, object]:
        """Return a whole response with a text before the answer."""
        choices = dicts(response.get("choices"))
        message = dict(object_field(choices[0], "message")) if choices else {}
        message["content"] = lead + text_field(message, "content")
        return response | {
            "choices": [{**choice, "message": message} for choice in choices[:1]] + choices[1:]
        }

    def text_response(self, model: str, end: Resolution, response_id: str) -> dict[str, object]:
        """Return a response of the gateway's own."""
        message = {"role": "assistant", "content": end.text}
        return {
            "id": f"chatcmpl-{response_id}",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": end_reason(end)}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }

    def text_stream(self, model: str, end: Resolution, response_id: str) -> bytes:
        """Return the same as a stream."""
        head = {
            "id": f"chatcmpl-{response_id}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": model,
        }
        return b"".join(
            (*text_events(head, 0, {"role": "assistant", "content": end.text}, end_reason(end)), DONE)
        )

    def reader(self, request: dict[str, object]) -> ChatReader:
        """Return a reader of the stream that answers a request."""
        return ChatReader(request)


def _guard_call(call: Message) -> Message:
    read = read_call(call, 0, 0)
    return call_document(read, canonical_arguments(read.arguments)) | ({} if read.id else {"id": None})
