"""A plain agent over HTTP in each protocol: asks, runs the calls, appends what a client would append."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.model_answers import PATHS


@dataclass
class Given:
    """What the client has got: text, and calls as id, tool, arguments."""

    text: str
    calls: list[tuple[str, str, dict[str, Any]]]
    finish: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes = b""


@dataclass
class Agent:
    """Keeps the whole conversation and sends it with every request."""

    world: Any
    shape: str = "openai"
    is_stream: bool = False
    session: str = "s-1"
    headers: dict[str, str] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0
    asks_usage: bool = True
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.say("reset my password")

    def say(self, text):
        said = {"parts": [{"text": text}]} if self.shape == "gemini" else {"content": text}
        self.messages.append({"role": "user", **said})

    def ask(self) -> Given:
        backend, path = PATHS[self.shape]
        key = {"responses": "input", "gemini": "contents"}.get(self.shape, "messages")
        request = {"model": "gpt-x", "stream": self.is_stream, key: self.messages, **self.more}
        if self.shape == "gemini":
            request = {key: self.messages, **self.more}
            path = path.replace(":g", ":streamG") + "?alt=sse" if self.is_stream else path
        if self.shape == "openai" and self.is_stream and self.asks_usage:
            request["stream_options"] = {"include_usage": True}
        session = {"LoopGuard-Session": self.session} if self.session else {}
        with self.world.http(backend, **session, **self.headers) as http:
            answer = http.post(path, json=request)
        assert answer.status_code == 200, answer.text
        given = READERS[self.shape, self.is_stream](answer.content)
        given.raw = answer.content
        return given

    def turn(self, result=lambda call: "0 hits") -> Given:
        """Ask once and run the calls."""
        given = self.ask()
        self.messages += given.messages
        results = []
        for one in given.calls:
            self.runs += 1
            results.append(self.result(one[0], result(one)))
        if self.shape in ("anthropic", "gemini") and results:
            key = "content" if self.shape == "anthropic" else "parts"
            self.messages.append({"role": "user", key: results})
        else:
            self.messages += results
        return given

    def result(self, call_id, text):
        if self.shape == "openai":
            return {"role": "tool", "tool_call_id": call_id, "content": text}
        if self.shape == "anthropic":
            return {"type": "tool_result", "tool_use_id": call_id, "content": text}
        if self.shape == "gemini":
            name = call_id.partition(" ")[0]
            return {"functionResponse": {"name": name, "response": {"output": text}}}
        return {"type": "function_call_output", "call_id": call_id, "output": text}

    def run(self, turns=20, **more) -> Given:
        """Work until an answer has no calls."""
        for _ in range(turns):
            given = self.turn(**more)
            if not given.calls:
                return given
        raise AssertionError("the run did not end")


def documents(raw):
    for event in raw.decode().replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].strip() for line in event.split("\n") if line.startswith("data:"))
        if data and data != "[DONE]":
            yield json.loads(data)


def chat_message(message, finish):
    calls = [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in message.get("tool_calls") or []
    ]
    return Given(message.get("content") or "", calls, finish, [message])


def chat_whole(raw):
    choice = json.loads(raw)["choices"][0]
    return chat_message(choice["message"], choice["finish_reason"])


def chat_stream(raw):
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    finish, roles = None, ""
    calls: dict[Any, Any] = {}
    for chunk in documents(raw):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            roles += delta.get("role") or ""
            message["content"] += delta.get("content") or ""
            for part in delta.get("tool_calls") or []:
                known = calls.setdefault(
                    part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                known["id"] = known["id"] or part.get("id", "")
                for name in ("name", "arguments"):
                    known["function"][name] += part["function"].get(name) or ""
            finish = choice.get("finish_reason") or finish
    assert sorted(calls) == list(range(len(calls))), "indexes begin at 0 and have no gap"
    assert raw.rstrip().endswith(b"data: [DONE]")
    choices = {choice["index"] for chunk in documents(raw) for choice in chunk["choices"]}
    assert roles == "assistant" * len(choices), "each choice has one role: some clients join them"
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return chat_message(message, finish)


def anthropic_message(content, finish):
    calls = [(b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"]
    text = "".join(b["text"] for b in content if b["type"] == "text")
    assert (finish == "tool_use") == bool(calls)
    return Given(text, calls, finish, [{"role": "assistant", "content": content}])


def anthropic_whole(raw):
    document = json.loads(raw)
    return anthropic_message(document["content"], document["stop_reason"])


def anthropic_stream(raw):
    inputs, finish, kinds = [], None, []
    blocks: list[Any] = []
    for event in documents(raw):
        kinds.append(event["type"])
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks), "blocks are numbered without a gap"
            blocks.append(event["content_block"])
            inputs.append("")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            inputs[event["index"]] += delta.get("partial_json", "")
            if "text" in delta:
                blocks[event["index"]]["text"] += delta["text"]
        elif event["type"] == "message_delta":
            finish = event["delta"]["stop_reason"]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    for block, text in zip(blocks, inputs, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text or "{}")
    return anthropic_message(blocks, finish)


def responses_items(output):
    calls = [
        (i["call_id"], i["name"], json.loads(i["arguments"])) for i in output if i["type"] == "function_call"
    ]
    text = "".join(p["text"] for i in output if i["type"] == "message" for p in i["content"])
    return Given(text, calls, "completed", output)


def responses_whole(raw):
    return responses_items(json.loads(raw)["output"])


def responses_stream(raw):
    events = list(documents(raw))
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers)), "numbers increase"
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == list(range(len(done)))
    last = events[-1]
    assert last["type"] == "response.completed"
    assert [event["item"] for event in done] == last["response"]["output"]
    assert [event["type"] for event in events].count("response.created") == 1
    return responses_items(last["response"]["output"])


def gemini_parts(parts, finish):
    calls = [
        (
            f"{part['functionCall']['name']} {place}",
            part["functionCall"]["name"],
            part["functionCall"]["args"],
        )
        for place, part in enumerate(parts)
        if "functionCall" in part
    ]
    text = "".join(part.get("text", "") for part in parts)
    assert finish == "STOP"
    return Given(text, calls, finish, [{"role": "model", "parts": parts}])


def gemini_whole(raw):
    candidate = json.loads(raw)["candidates"][0]
    return gemini_parts(candidate["content"]["parts"], candidate["finishReason"])


def gemini_stream(raw):
    candidates = [one for chunk in documents(raw) for one in chunk["candidates"]]
    finishes = [one["finishReason"] for one in candidates if "finishReason" in one]
    assert len(finishes) == 1
    parts = [part for one in candidates for part in one["content"].get("parts", ()) if part != {"text": ""}]
    return gemini_parts(parts, finishes[0])


READERS = {
    ("openai", False): chat_whole, ("openai", True): chat_stream,
    ("anthropic", False): anthropic_whole, ("anthropic", True): anthropic_stream,
    ("gemini", False): gemini_whole, ("gemini", True): gemini_stream,
    ("responses", False): responses_whole, ("responses", True): responses_stream,
}  # fmt: skip


def outcome(http, path, request):
    """Status, headers, all bytes that arrived, and the error in which the response ended."""
    got = b""
    with http:
        try:
            with http.stream("POST", path, json=request) as answer:
                for part in answer.iter_raw():
                    got += part
                headers = {k: v for k, v in answer.headers.items() if k != "transfer-encoding"}
                return answer.status_code, headers, got, None
        except httpx.HTTPError as error:
            return None, None, got, type(error).__name__
