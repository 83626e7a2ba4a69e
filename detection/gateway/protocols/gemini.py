"""Google's `generateContent`, whole and streamed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
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
)
from detection.gateway.protocols.rewrites import Rewrites
from detection.gateway.protocols.stream import StreamReader
from detection.integrations.transcripts import MessageShape, with_programs_named
from detection.strict_json import compact

_OWN_ID: Final = "lg_"
"""Calls have ids only in newer versions: without one, it is made of what is unique about the call."""
_UNSIGNED: Final = ""
"""The kind of a call is the signature that the model server wants back with it, if it has one."""
_NO_SIGNATURE: Final = frozenset(("skip_thought_signature_validator", "context_engineering_is_the_way_to_go"))
"""What clients send to newer models where a call has none, as Google's documentation of signatures says."""
_MADE_ID: Final = re.compile(r"_\d{13}_\d{1,4}")
"""The end of the ids that Gemini CLI makes, after the name of the tool: a time and a number."""
_LETTERS: Final = str.maketrans("-_", "+/", "=")
"""From the letters of Base64 in addresses to the others, without the padding."""


class Gemini:
    """Requests and whole responses.

    Parameters
    ----------
    model
        Its name in the path.
    is_stream
        Whether the path asks for server-sent events.
    is_list
        Whether it asks for a stream that is one JSON list.
    """

    shape: Final = "gemini"
    list_shape: MessageShape = "openai"
    no_tools: Any = {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}
    list_key = "contents"

    def __init__(self, model: str, *, is_stream: bool, is_list: bool) -> None:
        self.path_fields: dict[str, object] = {"model": model, "stream": is_stream}
        self._is_list = is_list

    def messages(self, request: dict[str, object]) -> list[Message] | None:
        """Return the conversation of a request; None if it has none.

        Google's chats return an answer that was a stream as one message for each chunk: here it is one again.
        """
        found = request.get("contents")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            return None
        out: list[Message] = []
        for message in found:
            if out and message.get("role") == out[-1].get("role") == "model":
                out[-1] = out[-1] | {"parts": [*_parts(out[-1]), *_parts(message)]}
            else:
                out.append(message)
        return out

    def previous_response(self, request: dict[str, object]) -> str:
        """Return the id of the response that a request continues: none, because clients send the whole conversation."""
        return ""

    def names_its_tool(self, request: dict[str, object]) -> bool:
        """Return whether the model has to call the one tool that the request names."""
        config = request.get("toolConfig") or request.get("tool_config")
        calling = config.get("functionCallingConfig") if isinstance(config, dict) else None
        names = calling.get("allowedFunctionNames") if isinstance(calling, dict) else None
        return text_field(calling, "mode") == "ANY" and isinstance(names, list) and len(names) == 1

    def is_kept(self, request: dict[str, object]) -> bool:
        """Return whether the model server keeps the conversation, so that later requests may name its responses."""
        return False

    def with_previous(self, known_id: str) -> dict[str, object]:
        """Return the fields of a request that continues another response."""
        return {}

    def with_results_first(self, results: list[Message], messages: Sequence[Message]) -> list[Message]:
        """Return messages with results before them."""
        return [*self.result_messages(results), *messages] if results else [*messages]

    def system_text(self, request: dict[str, object]) -> str:
        """Return the instructions, which help to distinguish conversations."""
        system = request.get("systemInstruction") or request.get("system_instruction")
        return repr([text_field(part, "text") for part in _parts(system)])

    def call_ids(self, message: Message) -> list[str]:
        """Return the ids of the calls in a message."""
        return [call.id for call in _calls(message)]

    def answer_of_message(self, message: Message) -> Answer:
        """Read the calls of an answer in the conversation."""
        return Answer(calls=_calls(message))

    def for_guard(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the guard reads them: in the form of chat completions."""
        out: list[Message] = []
        pending: list[ToolCall] = []
        for message in messages:
            if message.get("role") == "model":
                pending = _calls(message)
                text = "".join(text_field(part, "text") for part in _parts(message))
                out.append(
                    {"role": "assistant", "content": text, "tool_calls": [_guard_call(c) for c in pending]}
                )
                continue
            results = [part for part in _parts(message) if isinstance(part.get("functionResponse"), dict)]
            for part in results:
                answered = object_field(part, "functionResponse")
                call_id = _answered_id(answered, pending)
                out.append({"role": "tool", "tool_call_id": call_id, "content": _result_text(answered)})
            if not results:
                out.append({"role": message.get("role") or "user", "content": _said(message)})
        named = with_programs_named(out, "openai")
        return [{**one, "content": None} if one.get("role") == "assistant" else one for one in named]

    def rewritten(self, messages: Sequence[Message], rewrites: Rewrites) -> list[Message]:
        """Return the conversation with the additions unknown to the client; unchanged messages are the same objects."""
        out: list[Message] = []
        results: list[Message] = []
        pending: list[ToolCall] = []
        for message in messages:
            if message.get("role") == "model":
                pending = _calls(message)
                found = rewrites.of_answer([call.id for call in pending])
                results = []
                if found is not None:
                    out += found.before
                    if found.calls:
                        parts = _parts(message)
                        known = [part for part in parts if _is_call(part)]
                        others = [part for part in parts if not _is_call(part)]
                        message = message | {"parts": [*others, *found.merged(known)]}
                    results = found.results
            else:
                message, results = self._with_results(message, rewrites, results, pending), []
            out.append(message)
        return out

    def _with_results(
        self, message: Message, rewrites: Rewrites, results: list[Message], pending: list[ToolCall]
    ) -> Message:
        parts = message.get("parts")
        changed = [*results]
        for part in parts if isinstance(parts, list) else ():
            answered = part.get("functionResponse") if isinstance(part, dict) else None
            note = rewrites.note_of(_answered_id(answered, pending)) if isinstance(answered, dict) else ""
            if note and isinstance(answered, dict):
                response = {"loopguard": note, **object_field(answered, "response")}
                part = part | {"functionResponse": answered | {"response": response}}
            changed.append(part)
        known = parts if isinstance(parts, list) else []
        is_same = len(changed) == len(known) and all(a is b for a, b in zip(changed, known, strict=True))
        return message if is_same else message | {"parts": changed}

    def call_document(self, call: ToolCall, arguments: str) -> Message:
        """Return a call that the client did not receive, as part of an answer."""
        call_id = {} if call.id.startswith(_OWN_ID) else {"id": call.id}
        signature = {} if call.kind == _UNSIGNED else {"thoughtSignature": call.kind}
        return {"functionCall": {**call_id, "name": call.name, "args": _arguments(arguments)}, **signature}

    def answer_messages(self, calls: Sequence[Message], _: str = "") -> list[Message]:
        """Return an answer that consists of calls only."""
        return [{"role": "model", "parts": [*calls]}]

    def results(self, calls: Sequence[ToolCall], texts: Sequence[str]) -> list[Message]:
        """Return results of calls that did not run."""
        return [
            {
                "functionResponse": {
                    **({} if call.id.startswith(_OWN_ID) else {"id": call.id}),
                    "name": call.name,
                    "response": {"error": text},
                }
            }
            for call, text in zip(calls, texts, strict=True)
        ]

    def result_messages(self, results: list[Message]) -> list[Message]:
        """Return the messages that carry results."""
        return [{"role": "user", "parts": results}]

    def continued(self, request: dict[str, object], messages: list[Message], _: Answer) -> dict[str, object]:
        """Return a request with other messages."""
        own = {name: value for name, value in request.items() if name not in self.path_fields}
        return own | {"contents": messages}

    def answer(self, response: Any, _request: dict[str, object]) -> Answer:
        """Read a whole response; a stream that is a list has one after the other."""
        response = _joined(response)
        answer = Answer(text_field(response, "responseId"), text_field(response, "modelVersion"))
        answer.usage = usage_of(response.get("usageMetadata"))
        content = _content(response)
        for part in _parts(content):
            (answer.said.thinking if part.get("thought") else answer.said.text).add(text_field(part, "text"))
        answer.calls = _calls(content)
        answer.messages = [content] if answer.calls else []
        return answer

    def respond(self, response: Any, answer: Answer, resolution: Resolution) -> Any:
        """Return a whole response as the client gets it."""
        is_list, response = isinstance(response, list), _joined(response)
        blocked = {answer.calls[n].place for n in resolution.blocked}
        content = _content(response)
        parts = [part for place, part in enumerate(_parts(content)) if place not in blocked]
        if resolution.action == "text":
            parts.append({"text": resolution.text})
        found = _with_parts(response, parts)
        return [found] if is_list else found

    def with_lead(self, response: Any, lead: str) -> Any:
        """Return a whole response with a text before the answer."""
        is_list, response = isinstance(response, list), _joined(response)
        found = _with_parts(response, [{"text": lead}, *_parts(_content(response))])
        return [found] if is_list else found

    def text_response(self, model: str, end: Resolution, response_id: str) -> Any:
        """Return a response of the gateway's own. The protocol has no end that is an error and keeps the text."""
        response = _chunk({"responseId": response_id, "modelVersion": model}, end.text, "STOP")
        return [response] if self._is_list else response

    def text_stream(self, model: str, end: Resolution, response_id: str) -> bytes:
        """Return the same as a stream."""
        return StreamReader.event_of(
            _chunk({"responseId": response_id, "modelVersion": model}, end.text, "STOP")
        )

    def reader(self, _: dict[str, object]) -> GeminiReader:
        """Return a reader of the stream that answers a request."""
        return GeminiReader()


class GeminiReader(StreamReader):
    """The stream of one answer.

    Parameters
    ----------
    head
        Fields of the chunks of an earlier answer to the same request.
    """

    def __init__(self, head: dict[str, object] | None = None) -> None:
        super().__init__()
        self._head: dict[str, object] = head or {}
        self._parts: list[Message] = []
        self._first_held = 0
        self._last: dict[str, object] = {}

    def read(self, event: bytes, document: dict[str, object] | None, data: bytes) -> bytes:
        """Return the part of an event that is passed on immediately; hold the rest."""
        if document is None:
            return event
        names = ("responseId", "modelVersion")
        self._head = self._head or {name: document[name] for name in names if name in document}
        self.answer.id = self.answer.id or text_field(document, "responseId")
        self.answer.model = self.answer.model or text_field(document, "modelVersion")
        if document.get("usageMetadata"):
            self.answer.usage = usage_of(document["usageMetadata"])
        parts = _parts(_content(document))
        for part in parts:
            said = self.answer.said
            (said.thinking if part.get("thought") else said.text).add(text_field(part, "text"))
        first = len(self._parts)
        self._parts += parts
        self._last = document
        if any(map(_is_call, parts)):
            # Each has its number among all parts of the answer.
            self.answer.calls = _calls({"role": "model", "parts": self._parts})
        is_finished = any(one.get("finishReason") for one in dicts(document.get("candidates")))
        self.has_ended = self.has_ended or is_finished
        if self.answer.calls:
            self._first_held = self._first_held if self.held else first
            self.held.append(event)
            self.is_due = is_finished
            return b""
        if self.lead and (parts or is_finished):
            lead, self.lead = self.lead, ""
            return self.event_of(_chunk(self._head, lead)) + event
        return event

    def finish(self) -> None:
        """Complete the answer when the verdicts are due."""
        self.answer.messages = [{"role": "model", "parts": self._parts}]

    def forwarded(self) -> bytes:
        """Return the held events; calls are whole in each."""
        return b"".join(self.held)

    def resolved(self, resolution: Resolution) -> bytes:
        """Return what the client gets instead of the held events."""
        blocked = {self.answer.calls[n].place for n in resolution.blocked}
        held = enumerate(self._parts[self._first_held :], self._first_held)
        parts = [part for place, part in held if place not in blocked]
        if resolution.action == "text":
            text = ("\n\n" if self.answer.said.text.whole else "") + resolution.text
            parts.append({"text": text})
        return self.event_of(_with_parts(self._last, parts))

    def next_reader(self) -> GeminiReader:
        """Return the reader of the next answer."""
        return GeminiReader(self._head)

    def ended_with(self, text: str) -> bytes:
        """Return a text and the end of the stream."""
        return self.event_of(_chunk(self._head, text, "STOP"))

    def cut_with(self, text: str) -> bytes:
        """Return a text and the end of the stream, as if the limit of tokens was reached."""
        return self.event_of(_chunk(self._head, text, "MAX_TOKENS"))

    def keep_alive(self) -> bytes:
        """Return a chunk without content: some clients read no comments."""
        return self.event_of({"candidates": []})


def usage_of(usage: Any) -> TokenUsage:
    """Read the usage of a response; thoughts are output."""
    if not isinstance(usage, dict):
        return TokenUsage()
    output = whole_number(usage.get("candidatesTokenCount")) + whole_number(usage.get("thoughtsTokenCount"))
    prompt = whole_number(usage.get("promptTokenCount")) + whole_number(usage.get("toolUsePromptTokenCount"))
    return TokenUsage(prompt, whole_number(usage.get("cachedContentTokenCount")), output)


def _chunk(head: dict[str, object], text: str, finish: str = "") -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    return head | {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}


def _joined(response: Any) -> dict[str, object]:
    """Return a response; of a list of chunks the last, with the parts of all."""
    if not isinstance(response, list):
        return object_field({"response": response}, "response")
    chunks = dicts(response)
    parts = [part for chunk in chunks for part in _parts(_content(chunk))]
    whole: dict[str, object] = {}
    for chunk in chunks:
        whole |= chunk
    return _with_parts(whole, parts) if chunks else {}


def _with_parts(response: dict[str, object], parts: list[Message]) -> dict[str, object]:
    first, *others = dicts(response.get("candidates")) or [{}]
    content = {"role": "model", **object_field(first, "content"), "parts": parts}
    return response | {"candidates": [{**first, "content": content}, *others]}


def _content(response: dict[str, object]) -> Message:
    """Return the first candidate's content; others hold no calls, because the model server rejects that."""
    candidates = dicts(response.get("candidates"))
    return {"role": "model", **object_field(candidates[0], "content")} if candidates else {"role": "model"}


def _parts(content: Any) -> list[Message]:
    return dicts(content.get("parts")) if isinstance(content, dict) else []


def _is_call(part: Message) -> bool:
    return isinstance(part.get("functionCall"), dict)


def _calls(message: Message) -> list[ToolCall]:
    """Read the calls of a message of the model."""
    if message.get("role") != "model":
        return []
    parts = _parts(message)
    calls: list[ToolCall] = []
    for place, part in enumerate(parts):
        if not _is_call(part):
            continue
        call = object_field(part, "functionCall")
        name, arguments = text_field(call, "name"), compact(call.get("args") or {})
        signature = text_field(part, "thoughtSignature")
        call_id = _given_id(call) or _own_id(signature, name, arguments)
        calls.append(ToolCall(call_id, name, arguments, place, kind=signature))
    return calls


def _given_id(call: dict[str, object]) -> str:
    """Return the id that the model server has given a call, or names the call of a result by; empty if it has none."""
    call_id, name = text_field(call, "id"), text_field(call, "name")
    is_made = call_id.startswith(name) and _MADE_ID.fullmatch(call_id, len(name))
    return "" if is_made else call_id


def _own_id(signature: str, name: str, arguments: str) -> str:
    # Google's packages write the signature again, with the letters of addresses.
    known = "" if signature in _NO_SIGNATURE else signature.translate(_LETTERS)
    text = compact([known, name, arguments])
    return _OWN_ID + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _answered_id(answered: Message, pending: list[ToolCall]) -> str:
    """Return the id of the call that a result answers: its own, or that of the next call of its name."""
    given, name = _given_id(answered), text_field(answered, "name")
    found = next((call for call in pending if given in ("", call.id) and call.name == name), None)
    if found is None:
        return given
    pending.remove(found)
    return found.id


def _result_text(answered: Message) -> str:
    response = object_field(answered, "response")
    only = next(iter(response.values())) if len(response) == 1 else None
    return only if isinstance(only, str) else compact(response)


def _said(message: Message) -> Any:
    """Return the content of a message of the user's side: its texts, and others as parts without text."""
    return [
        {"type": "text", "text": part["text"]} if "text" in part else {"type": "other"}
        for part in _parts(message)
    ]


def _guard_call(call: ToolCall) -> Message:
    arguments = canonical_arguments(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _arguments(text: str) -> Any:
    try:
        return orjson.loads(text or "{}")
    except ValueError:
        return {NOT_RUN: text}
