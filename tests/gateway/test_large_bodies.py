"""Bodies that are large, or become large: rejected before they are parsed, or read without stopping the others."""

import gzip
import json
import random

import httpx
import orjson
import pytest

from detection.gateway import json_size, loop_state, request_body
from detection.gateway.json_size import has_too_many_values
from detection.services.ingestion.message_guard import MAX_MESSAGES
from tests.support.model_answers import PATHS, answered, call
from tests.support.model_server import Answer
from tests.support.plain_http import PLAIN

from .agents import Agent
from .conftest import World
from .test_guarding import decisions_of
from .test_litellm import HEADERS

MESSAGE = {"role": "user", "content": "x"}


def refusal(answer):
    assert answer.json()["error"]["type"] == "request_too_large"
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.promise("SEC-40")
@pytest.mark.parametrize("shape", PATHS)
def test_more_messages_than_the_guard_takes_are_rejected(world: World, shape):
    backend, path = PATHS[shape]
    key = {"responses": "input", "gemini": "contents"}.get(shape, "messages")
    one = {"role": "user", "parts": [{"text": "x"}]} if shape == "gemini" else MESSAGE
    world.model.script = lambda asked: answered(asked, shape, "Hi.")
    for number, status in ((MAX_MESSAGES, 200), (MAX_MESSAGES + 1, 413)):
        answer = world.http(backend).post(path, json={"model": "m", key: [one] * number})
        assert answer.status_code == status
    if shape == "gemini":
        assert "too_many_messages" in answer.text
    else:
        assert refusal(answer) == (413, "too_many_messages")
    assert len(world.model.asked) == 1, "what is rejected is not forwarded"


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([MESSAGE] * (MAX_MESSAGES + 1), "too_many_messages"),
        ([{"role": "user", "content": [[]] * 300_000}], "too_many_values"),
    ],
    ids=["messages", "values"],
)
def test_litellm_may_show_as_much_as_a_client_may_send(world: World, rows, code):
    shown = {
        "input_type": "request",
        "litellm_call_id": "c",
        "structured_messages": rows,
        "request_headers": HEADERS,
    }
    url = f"{world.url}/gateway/-/litellm/beta/litellm_basic_guardrail_api"
    answer = httpx.post(url, json=shown, headers={"x-api-key": world.key}, timeout=20, verify=PLAIN)
    assert refusal(answer) == (413, code)


def many(unit, size):
    return b'{"model":"m","messages":[' + b",".join([unit] * (size // (len(unit) + 1))) + b"]}"


@pytest.mark.promise("SEC-40")
@pytest.mark.parametrize(
    "body",
    [
        many(b'{"role":"user","content":"x"}', 28_000_000),
        many(b"[]", 4_000_000),
        many(b"1", 4_000_000),
        many(b'"a"', 4_000_000),
        b'{"messages":[],' + b",".join(b'"k%d":1' % number for number in range(300_000)) + b"}",
        b'{"tools":[' + b",".join([b'{"a":{}}'] * 200_000) + b'],"messages":[{"role":"user","content":"x"}]}',
        many(b'{"role":"user","content":"x"}', 12_000_000)[:-2],
    ],
    ids=["messages", "lists", "numbers", "texts", "keys", "tools", "cut"],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_more_values_than_a_conversation_has_are_rejected_unparsed(world: World, body, is_packed):
    headers = {"Content-Encoding": "gzip"} if is_packed else {}
    content = gzip.compress(body, 1) if is_packed else body
    answer = world.http().post("/chat/completions", content=content, headers=headers)
    assert refusal(answer) == (413, "too_many_values")
    assert not world.model.asked


def test_a_long_text_is_one_value_whatever_it_contains(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "Hi.")
    for text in ('{"a":[1,2]}' * 100_000, '",[{:' * 200_000, "\\" * 1_000_001, "\U0001f600,[" * 300_000):
        request = {"model": "m", "messages": [{"role": "user", "content": text}]}
        assert world.http().post("/chat/completions", json=request).status_code == 200
        assert world.model.asked[-1].document == request


@pytest.mark.promise("SEC-40")
def test_a_bomb_ends_at_the_limit_of_a_body(world: World):
    for size, status in ((30_000_000, 200), (request_body.MAX_BODY_BYTES + 1, 413)):
        world.model.script = lambda asked: answered(asked, "openai", "Hi.")
        start = b'{"model":"m","messages":[{"role":"user","content":"'
        body = gzip.compress(start + b"a" * (size - len(start) - 4) + b'"}]}', 1)
        answer = world.http().post("/chat/completions", content=body, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == status


def test_an_answer_with_too_many_values_is_not_read(world: World):
    world.model.script = lambda asked: Answer([b'{"choices":[' + b"[]," * 300_000 + b"[]]}"])
    request = {"model": "m", "messages": [MESSAGE]}
    answer = world.http().post("/chat/completions", json=request)
    assert (answer.status_code, len(answer.content)) == (200, 900_016), "it passes, as nothing could be read"
    world.change(fails_closed=True)
    assert world.http().post("/chat/completions", json=request).status_code == 502


@pytest.mark.parametrize("shape", PATHS)
def test_a_large_conversation_is_guarded_in_a_thread_like_a_small_one(world: World, shape, monkeypatch):
    monkeypatch.setattr(loop_state, "LARGE_BYTES", 1)
    world.model.script = lambda asked: answered(asked, shape, "", [call()])
    agent = Agent(world, shape, False)
    agent.run()
    assert decisions_of()[:4] == ["allow", "allow", "warn", "block"]


def plain_count(document):
    """The slow twin: values and keys of a parsed document, as separators."""
    if isinstance(document, list):
        return 1 + max(0, len(document) - 1) + sum(map(plain_count, document))
    if isinstance(document, dict):
        return 1 + len(document) + max(0, len(document) - 1) + sum(map(plain_count, document.values()))
    return 0


def grown(chance, depth=0):
    kind = chance.choice("lstn" if depth < 4 else "sn")
    if kind == "l":
        return [grown(chance, depth + 1) for _ in range(chance.randrange(6))]
    if kind == "s":
        return "".join(chance.choice('a"\\,[{:\n\u00e9\U0001f600') for _ in range(chance.randrange(30)))
    if kind == "t":
        return {f'k"{number}\\': grown(chance, depth + 1) for number in range(chance.randrange(6))}
    return chance.choice((1, -2.5, True, None))


@pytest.mark.promise("SEC-40")
@pytest.mark.parametrize("window", [2, 3, 7, 64 * 1024])
def test_values_are_counted_as_a_parser_would_find_them(window, monkeypatch):
    monkeypatch.setattr(json_size, "_WINDOW", window)
    chance = random.Random(window)
    for _ in range(300):
        document = grown(chance)
        count = plain_count(document)
        for body in (orjson.dumps(document), json.dumps(document, indent=1, ensure_ascii=True).encode()):
            monkeypatch.setattr(json_size, "MAX_VALUES", count)
            assert not has_too_many_values(body)
            monkeypatch.setattr(json_size, "MAX_VALUES", count - 1)
            assert has_too_many_values(body)


@pytest.mark.parametrize("body", [b'"', b'"\\', b'"a\\"', b"", b'{"a', b'"\\\\'])
def test_a_document_that_ends_within_a_text_is_counted(body):
    assert not has_too_many_values(body)
