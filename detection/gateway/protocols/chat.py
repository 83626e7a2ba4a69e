"""OpenAI's chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

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
from detection.gateway.protocols.rewrites import Rewrites
from detection.gateway.protocols.stream import StreamReader
from detection.integrations.transcripts import MessageShape

SHAPE: Final[MessageShape] = "openai"


class Chat:
    """Requests and whole responses."""

    shape: MessageShape = SHAPE
    list_key = "messages"

    def messages(self, request: dict[str, Any]) -> list[Message] | None:
        """Return the conversation of a request; None if it has none."""
        found = request.get("messages")
        return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None

    def call_ids(self, message: Message) -> list[str]:
        """Return the ids of the calls in a message."""
        if message.get("role") != "assistant":
            return []
        return [text_field(call, "id") for call in dicts(message.get("tool_calls"))]

    def system_text(self, request: dict[str, Any]) -> str:
        """Return what comes before the first message of the user: part of what tells conversations apart."""
        system = [m for m in self.messages(request) or [] if m.get("role") in ("system", "developer")]
        return repr([message.get("content") for message in system[:2]])

    def answer_of_message(self, message: Message) -> Answer:
        """Read the calls of an answer in the conversation."""
        calls = [_call(call, place, 0) for place, call in enumerate(dicts(message.get("tool_calls")))]
        return Answer(calls=calls)

    def for_guard(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the guard reads them: of the model only its calls, which clients keep as they are."""
        return [
            {"role": "assistant", "tool_calls": [_guard_call(call) for call in dicts(m.get("tool_calls"))]}
            if m.get("role") == "assistant"
            else m
            for m in messages
        ]

    def rewritten(self, messages: Sequence[Message], rewrites: Rewrites) -> list[Message]:
        """Return the conversation with what the client does not know; unchanged messages are the same objects."""
        out: list[Message] = []
        for message in messages:
            found = rewrites.of_answer(self.call_ids(message))
            if found is not None:
                out += found.before
                if found.calls:
                    message = message | {"tool_calls": found.merged(message["tool_calls"])}
            note = (
                rewrites.note_of(text_field(message, "tool_call_id")) if message.get("role") == "tool" else ""
            )
            out.append(message | {"content": with_note(message.get("content"), note)} if note else message)
            if found is not None:
                out += found.results
        return out

    def call_document(self, call: ToolCall, arguments: str) -> Message:
        """Return a call that the client did not get, as part of an answer."""
        if call.kind == "custom":
            return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments}}
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def answer_messages(self, calls: Sequence[Message], reasoning: str = "") -> list[Message]:
        """Return an answer that consists of calls, and of reasoning that some model servers want back with them."""
        more = {"reasoning_content": reasoning} if reasoning else {}
        return [{"role": "assistant", "content": None, **more, "tool_calls": [*calls]}]

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Message]:
        """Return results of calls that did not run."""
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def result_messages(self, results: list[Message]) -> list[Message]:
        """Return the messages that carry results."""
        return results

    def continued(self, request: dict[str, Any], messages: list[Message], _: Answer) -> dict[str, Any]:
        """Return a request with other messages."""
        return request | {"messages": messages}

    def answer(self, response: dict[str, Any]) -> Answer:
        """Read a whole response. The calls of several choices are those of one answer."""
        answer = Answer(text_field(response, "id"), text_field(response, "model"))
        answer.usage = usage_of(response.get("usage"))
        for choice in dicts(response.get("choices")):
            message = choice.get("message") or {}
            for place, call in enumerate(dicts(message.get("tool_calls"))):
                answer.calls.append(_call(call, place, whole_number(choice.get("index"))))
            answer.reasoning = answer.reasoning or text_field(message, "reasoning_content")
        return answer

    def respond(self, response: dict[str, Any], answer: Answer, resolution: Resolution) -> dict[str, Any]:
        """Return a whole response as the client gets it."""
        choices = []
        blocked = {(answer.calls[n].choice, answer.calls[n].place) for n in resolution.blocked}
        for choice in dicts(response.get("choices")):
            message = dict(choice.get("message") or {})
            calls = dicts(message.get("tool_calls"))
            index = whole_number(choice.get("index"))
            kept = [call for place, call in enumerate(calls) if (index, place) not in blocked]
            if calls and not kept:
                message.pop("tool_calls")
                text = resolution.text or "The calls were not run."
                message["content"] = "\n\n".join(filter(None, (text_field(message, "content"), text)))
                choice = choice | {"finish_reason": _end(resolution)}
            elif calls:
                message["tool_calls"] = kept
            choices.append(choice | {"message": message})
        return response | {"choices": choices}

    def with_lead(self, response: dict[str, Any], lead: str) -> dict[str, Any]:
        """Return a whole response with a text before the answer."""
        choices = dicts(response.get("choices"))
        message = dict(choices[0].get("message") or {}) if choices else {}
        message["content"] = lead + text_field(message, "content")
        return response | {
            "choices": [{**choice, "message": message} for choice in choices[:1]] + choices[1:]
        }

    def text_response(self, model: str, end: Resolution, response_id: str) -> dict[str, Any]:
        """Return a response of the gateway's own."""
        message = {"role": "assistant", "content": end.text}
        return {
            "id": f"chatcmpl-{response_id}",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _end(end)}],
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
            (*_text_events(head, 0, {"role": "assistant", "content": end.text}, _end(end)), _DONE)
        )

    def reader(self, request: dict[str, Any]) -> ChatReader:
        """Return a reader of the stream that answers a request."""
        return ChatReader(request)


_READ_FIELDS: Final = (
    b'"tool_calls"',
    b'"finish_reason"',
    b'"usage"',
    b'"reasoning_content"',
    b'"error"',
)
"""The fields of a chunk that matter to the reader. In a text, their quotation marks have backslashes."""
_CONTENT: Final = re.compile(rb'"content": ?"(?=[^"\\]*")')


class ChatReader(StreamReader):
    """The stream of one answer.

    Parameters
    ----------
    head
        Fields of the chunks of an earlier answer to the same request.
    begun
        Choices of which the client has got the role: some clients join all the roles that they get.
    """

    def __init__(
        self, request: dict[str, Any], head: dict[str, Any] | None = None, begun: Iterable[int] = ()
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
        self._head: dict[str, Any] = head or {}
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
                return True
        if not self.answer.id or self._choice_count > 1 or not data.endswith(b"\n\n") or b"[DONE]" in data:
            return False
        # A field that is null loses its second quotation mark, by which it is found.
        set_fields = data.replace(b'":null', b"").replace(b'": null', b"")
        for field in _READ_FIELDS:
            if field in set_fields:
                return False
        self._has_text = True
        if data.count(b"\n\n") == 1 and (found := _CONTENT.search(data)):
            self._frame = data[: found.end()], data[data.index(b'"', found.end()) :]
        return True

    def without_hidden(self, data: bytes) -> bytes:
        """Return events without an empty usage that the client has not asked for."""
        for text in _NULL_USAGE if self.hides_usage else ():
            data = data.replace(text, b"")
        return data

    def read(self, event: bytes, document: dict[str, Any] | None, data: bytes) -> bytes:
        """Return what passes at once of an event; hold the rest."""
        if document is None:
            if data != b"[DONE]":
                return event
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

    def _begin(self, choice: int) -> dict[str, Any]:
        """Return what the first chunk of a choice has; empty for a later one."""
        if choice in self._begun:
            return {}
        self._begun.add(choice)
        return {"role": "assistant"}

    def _without_role(self, choice: dict[str, Any]) -> dict[str, Any]:
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
    def _is_finished(self) -> bool:
        return len(self._finished) >= self._choice_count

    def _read_head(self, document: dict[str, Any]) -> None:
        if not self.answer.id:
            names = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
            self._head = {name: document[name] for name in names if name in document}
            self.answer.id, self.answer.model = text_field(document, "id"), text_field(document, "model")
        if document.get("usage"):
            self.answer.usage = usage_of(document["usage"])

    def _read_choices(self, event: bytes, choices: list[dict[str, Any]]) -> bytes:
        is_held = False
        for choice in choices:
            index, delta = whole_number(choice.get("index")), choice.get("delta") or {}
            for fragment in dicts(delta.get("tool_calls")):
                self._read_fragment(index, fragment)
                is_held = True
            self._has_text = self._has_text or bool(text_field(delta, "content"))
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

    def _read_fragment(self, choice: int, fragment: dict[str, Any]) -> None:
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
        """Return what is held, whole calls one after the other."""
        if len(self._order) == len(self._calls):
            return b"".join((*self.held, *self._tail))
        return self.resolved(Resolution("forward"))

    def resolved(self, resolution: Resolution) -> bytes:
        """Return what the client gets instead of what is held."""
        out: list[bytes] = []
        for choice in sorted({choice for choice, _ in self._calls}):
            kept = [
                call
                for n, call in enumerate(self.answer.calls)
                if call.choice == choice and n not in resolution.blocked
            ]
            for place, call in enumerate(kept):
                document = {"index": place, **Chat().call_document(call, call.arguments)}
                out.append(self._chunk(choice, self._begin(choice) | {"tool_calls": [document]}))
            if kept:
                out.append(self._finish(choice))
            else:
                text = ("\n\n" if self._has_text else "") + (resolution.text or "The calls were not run.")
                out += self._text_events(choice, text, _end(resolution))
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

    def _chunk(self, choice: int, delta: dict[str, Any], finish: Any = None) -> bytes:
        return _chunk(self._head, choice, delta, finish)

    def next_reader(self) -> ChatReader:
        """Return the reader of the next answer."""
        return ChatReader(self._request, self._head, self._begun)

    def ended_with(self, text: str) -> bytes:
        """Return a text and the end of the stream."""
        return b"".join((*self._text_events(0, text, "stop"), _DONE))

    def _text_events(self, choice: int, text: str, finish: str) -> list[bytes]:
        return _text_events(self._head, choice, self._begin(choice) | {"content": text}, finish)


_NULL_USAGE: Final = (b',"usage":null', b', "usage": null')
"""What chunks have when usage was asked for and is not there yet. Strings contain no bare quotes."""
_DONE: Final = b"data: [DONE]\n\n"


def _chunk(head: dict[str, Any], choice: int, delta: dict[str, Any], finish: Any = None) -> bytes:
    choices = [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return StreamReader.event_of(head | {"choices": choices})


def _text_events(head: dict[str, Any], choice: int, delta: dict[str, Any], finish: str) -> list[bytes]:
    return [_chunk(head, choice, delta), _chunk(head, choice, {}, finish)]


def _end(resolution: Resolution) -> str:
    return "error" if resolution.ends_in_error else "stop"


def _call(call: Message, place: int, choice: int) -> ToolCall:
    kind = "custom" if isinstance(call.get("custom"), dict) else "function"
    part = call.get(kind)
    arguments = text_field(part, "input" if kind == "custom" else "arguments")
    return ToolCall(text_field(call, "id"), text_field(part, "name"), arguments, place, choice, kind)


def _guard_call(call: Message) -> Message:
    read = _call(call, 0, 0)
    return Chat().call_document(read, canonical_arguments(read.arguments)) | ({} if read.id else {"id": None})


def usage_of(usage: Any) -> TokenUsage:
    """Read the usage of a response."""
    if not isinstance(usage, dict):
        return TokenUsage()
    details = usage.get("prompt_tokens_details")
    return TokenUsage(
        whole_number(usage.get("prompt_tokens")),
        whole_number(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        whole_number(usage.get("completion_tokens")),
    )
