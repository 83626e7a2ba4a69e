"""The failure rule of a backend, and answers that are cut, broken or in another form than expected."""

import contextlib
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from detection.gateway import guarding, traffic
from detection.models import Event, GatewayTraffic, TrafficPeriod
from tests.support.model_answers import PATHS, WHOLE, answered, call, chat_whole, sse
from tests.support.model_server import Answer, of_events, of_json
from tests.support.projects import make_key

from .agents import Agent, outcome
from .conftest import World, database_away, wait_for
from .forms import forms_in_turns
from .test_guarding import calls_of, decisions_of


@pytest.fixture
def database(world: World):
    """Takes the database away from the threads of the gateway, after keys and backends have become known."""

    with contextlib.ExitStack() as stack:

        class Switch:
            def fail(self):
                world.http().get("/models")
                world.http("anthropic").get("/v1/models")
                stack.enter_context(database_away())

        yield Switch()


@forms_in_turns
def test_without_the_database_calls_pass_under_fail_open(world: World, database, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "Hm.", [call()])
    database.fail()
    agent = Agent(world, shape, is_stream)
    for _ in range(2):
        assert agent.turn().calls
    assert not Event.objects.exists()


@forms_in_turns
def test_without_the_database_calls_are_withheld_under_fail_closed(world: World, database, shape, is_stream):
    world.change(PATHS[shape][0], fails_closed=True)
    world.model.script = lambda asked: answered(asked, shape, "Hm.", [call()])
    database.fail()
    given = Agent(world, shape, is_stream).turn()
    assert not given.calls
    assert guarding.UNAVAILABLE in given.text


def test_without_the_database_an_unknown_key_gets_503(world: World, database):
    database.fail()
    token = make_key(world.project)
    answer = httpx.get(f"{world.base_url()}/models", headers={"LoopGuard-Key": token}, timeout=20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "retry-after" in answer.headers


@forms_in_turns
def test_a_cut_in_a_call_is_a_cut_and_evaluates_nothing(world: World, shape, is_stream):
    def script(asked):
        answer = answered(asked, shape, "Hm.", [call()])
        if is_stream:  # before the end of the calls is marked
            answer.parts = answer.parts[: -3 if shape == "openai" else -2]
        else:
            answer.parts = [answer.body[:50]]
        answer.ends = "cut"
        return answer

    world.model.script = script
    with pytest.raises(httpx.RemoteProtocolError):
        Agent(world, shape, is_stream).turn()
    assert not Event.objects.exists()


@pytest.mark.parametrize("asks_usage", [True, False])
def test_calls_that_are_whole_before_a_cut_are_evaluated_and_delivered(world: World, asks_usage, monkeypatch):
    """Only the usage is missing, which the agent or the gateway has asked for."""
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.1)

    def script(asked):
        answer = answered(asked, "openai", "Hm.", [call()])
        answer.parts, answer.ends = answer.parts[:-2], "cut"
        return answer

    world.model.script = script
    request: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    if asks_usage:
        request["stream_options"] = {"include_usage": True}
    for decision in ("allow", "allow", "allow", "block"):
        _, _, raw, error = outcome(world.http(**{"LoopGuard-Session": "s-1"}), "/chat/completions", request)
        assert error == "RemoteProtocolError"
        assert (b'"tool_calls"' in raw) == (decision == "allow")
        result = {"role": "tool", "tool_call_id": calls_of()[-1].call_id, "content": "0 hits"}
        called = chat_whole(1, "", [(result["tool_call_id"], "search", {"q": "reset password"})])
        request["messages"] += [called["choices"][0]["message"], result]
    assert decisions_of() == ["allow", "allow", "warn", "block"]
    cut = GatewayTraffic.objects.filter(period=TrafficPeriod.ALWAYS, backend=world.backend(), cut=4)
    wait_for(cut.exists)


@forms_in_turns
@pytest.mark.parametrize("status", [400, 429, 500])
def test_errors_of_the_model_server_are_its_own(world: World, shape, is_stream, status):
    world.model.script = lambda asked: of_json({"error": {"message": "no"}}, status, **{"Retry-After": "7"})
    backend, path = PATHS[shape]
    answer = world.http(backend).post(
        path, json={"model": "m", "messages": [], "input": [], "stream": is_stream}
    )
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (
        status,
        {"error": {"message": "no"}},
        "7",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"messages": 1}',
        b'{"messages": ["x"]}',
        b'{"messages": [{"role": 1}]}',
    ],
)
def test_what_is_no_conversation_is_the_model_servers_to_reject(world: World, body):
    answer = world.http().post("/chat/completions", content=body)
    assert answer.status_code == 200
    assert world.model.asked[0].body == body


@pytest.mark.parametrize(
    "document",
    [
        [], 1, {}, {"choices": None}, {"choices": [{}]}, {"choices": [{"message": {"tool_calls": "x"}}]},
        {"choices": [{"message": {"tool_calls": [{"id": 1, "function": 2}]}}]},
    ],
)  # fmt: skip
def test_an_answer_of_another_form_passes(world: World, document):
    world.model.script = lambda asked: of_json(document)
    answer = world.http().post("/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert answer.json() == document


def test_a_stream_of_another_form_passes(world: World):
    raw = [
        b": hello\n\n",
        b"data: nonsense\n\n",
        sse({"choices": "x"}),
        sse({"choices": [1, {"delta": []}]}),
        b"data: 1",
    ]
    world.model.script = lambda asked: of_events(raw)
    request = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    assert world.http().post("/chat/completions", json=request).content == b"".join(raw)


def test_an_answer_in_another_media_type_passes(world: World):
    raw = json.dumps(WHOLE["openai"](1, "", [call()])).encode()
    world.model.script = lambda asked: Answer([raw], headers={"Content-Type": "text/plain"})
    answer = world.http().post("/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert answer.content == raw


def test_an_error_in_a_stream_passes_and_the_calls_before_it_do_not(world: World):
    def script(asked):
        answer = answered(asked, "openai", "Hm.", [call()])
        answer.parts = [*answer.parts[:-2], sse({"error": {"message": "overloaded"}})]
        return answer

    world.model.script = script
    request = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    raw = world.http().post("/chat/completions", json=request).content
    assert b"overloaded" in raw
    assert b"tool_calls" not in raw


@pytest.mark.promise("REL-36")
@pytest.mark.parametrize(
    "end", [b"", b"0\r\n", b"zz\r\n", b"5\r\nab"], ids=["early", "no break", "no size", "within"]
)
@pytest.mark.parametrize("path", ["/chat/completions", "/files"], ids=["guarded", "passed on"])
def test_a_body_that_is_cut_or_broken_never_reaches_a_model_server_as_a_whole_one(world: World, path, end):
    at = urlsplit(world.base_url() + path)
    body = json.dumps({"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}).encode()
    head = (
        f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nLoopGuard-Key: {world.key}\r\nAuthorization: Bearer sk\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((at.hostname or "", at.port or 0), timeout=20) as client:
        client.sendall(head.encode() + b"%x\r\n%s\r\n%s" % (len(body), body, end))
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b" 200 " not in answer.partition(b"\r\n")[0]
    assert world.model.asked == []
