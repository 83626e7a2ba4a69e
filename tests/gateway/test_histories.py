"""Histories as agents send them: whole, condensed, branched, in turns with another session, or kept by the model server."""

import gzip
import json
from zlib import crc32

import pytest

from tests.support.model_answers import answered, call

from .agents import Agent
from .conftest import World
from .forms import forms_in_turns
from .test_guarding import calls_of, decisions_of


def every_call_is_new(world, shape):
    world.model.script = lambda asked: answered(asked, shape, "", [call(q=f"page {len(world.model.asked)}")])


def turns(agent, count):
    for _ in range(count):
        assert agent.turn(lambda one: f"{crc32(str(one[2]).encode())} hits").calls


@forms_in_turns
def test_a_condensed_history_counts_no_call_twice(world: World, shape, is_stream):
    every_call_is_new(world, shape)
    agent = Agent(world, shape, is_stream)
    turns(agent, 8)
    agent.messages = [{"role": "user", "content": "Summary: eight pages were searched."}]
    turns(agent, 4)
    assert [json.loads(row.arguments)["q"] for row in calls_of()] == [f"page {n}" for n in range(1, 13)]


@forms_in_turns
def test_a_loop_goes_on_after_its_history_was_condensed(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "", [call()])
    agent = Agent(world, shape, is_stream)
    for _ in range(2):
        agent.turn()
    agent.messages = [{"role": "user", "content": "Summary: nothing was found."}]
    agent.run()
    assert agent.runs == 3
    assert decisions_of()[3:] == ["block"] * 3


@forms_in_turns
def test_branches_of_a_conversation_count_each_call_once(world: World, shape, is_stream):
    every_call_is_new(world, shape)
    agent = Agent(world, shape, is_stream)
    turns(agent, 3)
    base = [*agent.messages]
    turns(agent, 2)
    first = [*agent.messages]
    agent.messages = base
    agent.say("try another way")
    turns(agent, 2)
    agent.messages = first
    turns(agent, 1)
    assert [json.loads(row.arguments)["q"] for row in calls_of()] == [f"page {n}" for n in range(1, 9)]


@forms_in_turns
def test_two_sessions_in_turns_keep_their_own_counts(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "", [call()])
    agents = [Agent(world, shape, is_stream, session=name) for name in ("a", "b")]
    for _ in range(4):
        for agent in agents:
            agent.turn()
    assert [agent.runs for agent in agents] == [3, 3]
    for name in ("a", "b"):
        assert decisions_of(name)[:4] == ["allow", "allow", "warn", "block"]


@forms_in_turns
def test_a_packed_request_is_read_and_guarded(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "", [call()])
    backend, path = {
        "openai": ("openai", "/chat/completions"), "anthropic": ("anthropic", "/v1/messages"),
        "responses": ("openai", "/responses"),
    }[shape]  # fmt: skip
    key = "input" if shape == "responses" else "messages"
    request = {"model": "m", "stream": is_stream, key: [{"role": "user", "content": "x"}]}
    if shape == "openai" and is_stream:
        request["stream_options"] = {"include_usage": True}  # so that the gateway does not ask for it
    body = json.dumps(request).encode()
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json", "LoopGuard-Session": "s-1"}
    http = world.http(backend, **headers)
    assert http.post(path, content=gzip.compress(body)).status_code == 200
    assert world.model.asked[0].body == body
    assert "content-encoding" not in world.model.asked[0].headers
    assert decisions_of() == ["allow"]


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("gzip", b"no gzip", 400, "invalid_body"),
        ("gzip", gzip.compress(b"x" * 40_000_000), 413, "body_too_large"),
        ("zstd", b"x", 415, "unsupported_encoding"),
    ],
)
def test_a_body_that_cannot_be_unpacked_is_rejected(world: World, encoding, body, status, code):
    answer = world.http(**{"Content-Encoding": encoding}).post("/chat/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not world.model.asked


def test_a_packed_body_that_ends_early_is_rejected(world: World):
    packed = gzip.compress(b'{"messages": [{"role": "user", "content": "x"}]}')[:-12]
    answer = world.http(**{"Content-Encoding": "gzip"}).post("/chat/completions", content=packed)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")
