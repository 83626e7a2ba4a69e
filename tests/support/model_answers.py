"""Answers of a model in the three protocols, whole and as streams, and agents that understand them."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support.model_server import Answer, Asked, of_events, of_json

_numbers = itertools.count(1)
Json = dict[str, Any]
Call = tuple[str, str, Json]
"""Id, tool, arguments."""
PATHS = {
    "openai": ("openai", "/chat/completions"),
    "anthropic": ("anthropic", "/v1/messages"),
    "responses": ("openai", "/responses"),
    "gemini": ("gemini", "/v1beta/models/gemini-x:generateContent"),
}
"""Backend and route by shape."""


def call(tool: str = "search", call_id: str | None = None, **arguments: Any) -> Call:
    return call_id or f"call_{next(_numbers)}", tool, arguments or {"q": "reset password"}


def sse(document: dict[str, Any] | str, name: str = "") -> bytes:
    data = document if isinstance(document, str) else json.dumps(document)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def is_streamed(asked: Asked) -> bool:
    """Whether a request wants its answer as a stream."""
    return bool(asked.document.get("stream")) or ":streamGenerateContent" in asked.path


def answered(asked: Asked, shape: str, text: str = "", calls: Sequence[Call] = ()) -> Answer:
    """The answer in the form that the request wants."""
    number = next(_numbers)
    if is_streamed(asked):
        return of_events(list(STREAMS[shape](number, text, calls, asked.document)))
    return of_json(WHOLE[shape](number, text, calls))


# Chat completions

CHAT_USAGE = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940}


def _chat_call(one: Call) -> Json:
    return {"id": one[0], "type": "function", "function": {"name": one[1], "arguments": json.dumps(one[2])}}


def chat_whole(number: int, text: str, calls: Sequence[Call]) -> Json:
    message: Json = {"role": "assistant", "content": text or None, "refusal": None}
    if calls:
        message["tool_calls"] = [_chat_call(one) for one in calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": "gpt-x"}
    return {**head, "choices": [choice], "usage": CHAT_USAGE}


def chat_chunk(number: int, delta: Json, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x"}
    return sse({**head, "choices": [choice], **more})


def chat_stream(number: int, text: str, calls: Sequence[Call], request: Json) -> Iterator[bytes]:
    yield chat_chunk(number, {"role": "assistant", "content": ""})
    for word in text.split():
        yield chat_chunk(number, {"content": f"{word} "})
    for place, one in enumerate(calls):
        whole = _chat_call(one)
        arguments = whole["function"].pop("arguments")
        yield chat_chunk(
            number,
            {"tool_calls": [{"index": place, **whole, "function": {**whole["function"], "arguments": ""}}]},
        )
        for part in (arguments[:5], arguments[5:]):
            yield chat_chunk(number, {"tool_calls": [{"index": place, "function": {"arguments": part}}]})
    yield chat_chunk(number, {}, "tool_calls" if calls else "stop")
    if (request.get("stream_options") or {}).get("include_usage"):
        head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x"}
        yield sse({**head, "choices": [], "usage": CHAT_USAGE})
    yield sse("[DONE]")


# Anthropic's messages


def anthropic_whole(number: int, text: str, calls: Sequence[Call]) -> Json:
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "tool_use", "id": one[0], "name": one[1], "input": one[2]} for one in calls]
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-x", "content": content,
        "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 800, "cache_read_input_tokens": 100, "output_tokens": 40},
    }  # fmt: skip


def anthropic_stream(number: int, text: str, calls: Sequence[Call], _request: Json) -> Iterator[bytes]:
    def event(**document: Any) -> bytes:
        return sse(document, document["type"])

    message = anthropic_whole(number, "", ()) | {"stop_reason": None}
    message["usage"] = message["usage"] | {"output_tokens": 1}
    yield event(type="message_start", message=message)
    index = 0
    if text:
        yield event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield event(type="ping")
        for word in text.split():
            yield event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": f"{word} "})
        yield event(type="content_block_stop", index=0)
        index = 1
    for one in calls:
        block = {"type": "tool_use", "id": one[0], "name": one[1], "input": {}}
        yield event(type="content_block_start", index=index, content_block=block)
        arguments = json.dumps(one[2])
        for part in ("", arguments[:5], arguments[5:]):
            delta = {"type": "input_json_delta", "partial_json": part}
            yield event(type="content_block_delta", index=index, delta=delta)
        yield event(type="content_block_stop", index=index)
        index += 1
    end = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield event(type="message_delta", delta=end, usage={"output_tokens": 40})
    yield event(type="message_stop")


# Responses


def _response(number: int, status: str, output: list[Json], usage: Json | None = None) -> Json:
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "status": status, "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "model": "gpt-x", "output": output,
        "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": usage,
    }  # fmt: skip


def _items(number: int, text: str, calls: Sequence[Call]) -> list[Json]:
    items: list[Json] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append(
            {
                "id": f"msg_{number}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for place, one in enumerate(calls):
        names = {"id": f"fc_{number}_{place}", "call_id": one[0], "name": one[1]}
        items.append(
            {"type": "function_call", "status": "completed", **names, "arguments": json.dumps(one[2])}
        )
    return items


RESPONSES_USAGE = {
    "input_tokens": 900, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 940,
}  # fmt: skip


def responses_whole(number: int, text: str, calls: Sequence[Call]) -> Json:
    return _response(number, "completed", _items(number, text, calls), RESPONSES_USAGE)


def responses_stream(number: int, text: str, calls: Sequence[Call], _request: Json) -> Iterator[bytes]:
    numbers = itertools.count()

    def event(kind: str, **document: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(numbers), **document}, kind)

    items = _items(number, text, calls)
    yield event("response.created", response=_response(number, "in_progress", []))
    yield event("response.in_progress", response=_response(number, "in_progress", []))
    for index, item in enumerate(items):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            part = item["content"][0]
            yield event(
                "response.output_item.added",
                output_index=index,
                item=item | {"status": "in_progress", "content": []},
            )
            yield event("response.content_part.added", **at, content_index=0, part=part | {"text": ""})
            for word in text.split():
                yield event(
                    "response.output_text.delta", **at, content_index=0, delta=f"{word} ", logprobs=[]
                )
            yield event("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
            yield event("response.content_part.done", **at, content_index=0, part=part)
        else:
            arguments = item["arguments"]
            yield event(
                "response.output_item.added",
                output_index=index,
                item=item | {"status": "in_progress", "arguments": ""},
            )
            for part in (arguments[:5], arguments[5:]):
                yield event("response.function_call_arguments.delta", **at, delta=part)
            yield event("response.function_call_arguments.done", **at, arguments=arguments, name=item["name"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=responses_whole(number, text, calls))


# Gemini


def _gemini_chunk(number: int, parts: list[Json], finish: str = "", **more: Any) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-x", "responseId": f"g_{number}", **more}


def _gemini_calls(number: int, calls: Sequence[Call]) -> list[Json]:
    """As the model server makes them: without ids, and with a signature at the first."""
    parts: list[Json] = [{"functionCall": {"name": one[1], "args": one[2]}} for one in calls]
    if parts:
        parts[0]["thoughtSignature"] = base64.b64encode(b"\xfb\xff\xfe%d" % number).decode()
    return parts


GEMINI_USAGE = {
    "promptTokenCount": 900, "candidatesTokenCount": 30, "thoughtsTokenCount": 10, "totalTokenCount": 940,
}  # fmt: skip


def gemini_whole(number: int, text: str, calls: Sequence[Call]) -> Json:
    parts: list[Json] = [{"text": text}] if text else []
    parts += _gemini_calls(number, calls)
    return _gemini_chunk(number, parts, "STOP", usageMetadata=GEMINI_USAGE)


def gemini_stream(number: int, text: str, calls: Sequence[Call], _request: Json) -> Iterator[bytes]:
    for word in text.split():
        yield sse(_gemini_chunk(number, [{"text": f"{word} "}]))
    for part in _gemini_calls(number, calls):
        yield sse(_gemini_chunk(number, [part]))
    yield sse(_gemini_chunk(number, [{"text": ""}], "STOP", usageMetadata=GEMINI_USAGE))


STREAMS: dict[str, Callable[[int, str, Sequence[Call], Json], Iterator[bytes]]] = {
    "openai": chat_stream, "anthropic": anthropic_stream, "responses": responses_stream,
    "gemini": gemini_stream,
}  # fmt: skip
WHOLE: dict[str, Callable[[int, str, Sequence[Call]], Json]] = {
    "openai": chat_whole, "anthropic": anthropic_whole, "responses": responses_whole,
    "gemini": gemini_whole,
}  # fmt: skip
