"""Conversations that the model server keeps: requests have only what is new, and name the response that they continue."""

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from detection.engine.scopes import Scope
from detection.models import Session
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.support.model_answers import answered, call

from .agents import Agent, documents
from .conftest import World, serving
from .forms import kept_forms_in_turns
from .test_guarding import decisions_of


class KeptConversation:
    """Sends only what is new, with the id of the response before; each request to the next of several processes."""

    def __init__(self, world, shape, is_stream, urls=()):
        self.shape, self.is_stream = shape, is_stream
        self.worlds = [world, *(replace(world, url=url) for url in urls)]
        self.previous = None
        self.new = [{"role": "user", "content": "reset my password"}]
        self.runs = self.turns = 0

    def turn(self, result="0 hits"):
        agent = Agent(self.worlds[self.turns % len(self.worlds)], self.shape, self.is_stream, session="")
        self.turns += 1
        agent.messages = self.new
        if self.shape == "anthropic":
            kept = {"type": "continue", "previous_message_id": self.previous}
            agent.more = {"thread": kept if self.previous else {"type": "create"}}
        else:
            agent.more = {"previous_response_id": self.previous} if self.previous else {}
        given = agent.ask()
        self.previous = id_of(given.raw, is_stream=self.is_stream)
        self.runs += len(given.calls)
        results = [agent.result(one[0], result) for one in given.calls]
        if results and self.shape == "anthropic":
            results = [{"role": "user", "content": results}]
        self.new = results or [{"role": "user", "content": "go on"}]
        return given


def id_of(raw, *, is_stream):
    """The id under which a client knows an answer."""
    if not is_stream:
        return json.loads(raw)["id"]
    events = list(documents(raw))
    return (events[0].get("message") or events[-1]["response"])["id"]


class StrictServer:
    """Knows its responses, and wants a result for each of their calls, and none for another one."""

    def __init__(self, shape, calls):
        self.shape, self.calls = shape, calls
        self.open: dict[Any, set[str]] = {None: set()}
        self.errors = []

    def __call__(self, asked):
        document = asked.document
        if self.shape == "anthropic":
            previous = document["thread"].get("previous_message_id")
            blocks = [
                block
                for one in document["messages"]
                if isinstance(one["content"], list)
                for block in one["content"]
            ]
            given = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            called = {block["id"] for block in blocks if block["type"] == "tool_use"}
        else:
            previous = document.get("previous_response_id")
            given = {one["call_id"] for one in document["input"] if one.get("type") == "function_call_output"}
            called = {one["call_id"] for one in document["input"] if one.get("type") == "function_call"}
        if previous not in self.open or self.open[previous] | called != given:
            self.errors.append((previous, self.open.get(previous), called, given))
        calls = self.calls(asked)
        answer = answered(asked, self.shape, "Hm.", calls)
        raw = answer.body
        self.open[id_of(raw, is_stream=document.get("stream"))] = {one[0] for one in calls}
        return answer


def new_page(world):
    return [call(q=f"page {len(world.model.asked)}")]


@kept_forms_in_turns
@pytest.mark.parametrize("processes", [1, 2])
def test_a_conversation_is_one_session_in_all_processes(world: World, shape, is_stream, processes):
    server = world.model.script = StrictServer(shape, lambda asked: new_page(world))
    with ExitStack() as stack:
        urls = [stack.enter_context(serving()) for _ in range(processes - 1)]
        agent = KeptConversation(world, shape, is_stream, urls)
        for number in range(4):
            assert agent.turn(f"found {number}").calls
    assert server.errors == []
    assert Session.objects.get().call_count == 4
    assert decisions_of(Session.objects.get().external_id) == ["allow"] * 4


@kept_forms_in_turns
def test_answers_without_calls_are_part_of_it(world: World, shape, is_stream):
    server = world.model.script = StrictServer(
        shape, lambda asked: new_page(world) if len(world.model.asked) in (2, 5) else []
    )
    with serving() as url:
        agent = KeptConversation(world, shape, is_stream, [url])
        for number in range(5):
            agent.turn(f"found {number}")
    assert server.errors == []
    assert Session.objects.get(call_count__gt=0).call_count == 2


@kept_forms_in_turns
def test_a_loop_is_blocked_and_the_conversation_stays_usable(world: World, shape, is_stream):
    stuck = True
    server = world.model.script = StrictServer(shape, lambda asked: [call()] if stuck else [])
    with serving() as url:
        agent = KeptConversation(world, shape, is_stream, [url])
        given = agent.turn()
        while given.calls:
            given = agent.turn()
        assert agent.runs == 3
        assert given.text
        stuck = False
        assert agent.turn().text
        assert agent.turn().text
    assert server.errors == []


@kept_forms_in_turns
def test_a_blocked_call_is_asked_again(world: World, shape, is_stream):
    server = world.model.script = StrictServer(
        shape, lambda asked: [call()] if len(world.model.asked) < 5 else new_page(world)
    )
    with serving() as url:
        agent = KeptConversation(world, shape, is_stream, [url])
        tools = [agent.turn().calls[0][2]["q"] for _ in range(6)]
    assert tools[:4] == ["reset password"] * 3 + ["page 5"]
    assert server.errors == []


@kept_forms_in_turns
def test_a_call_blocked_beside_others_gets_its_result(world: World, shape, is_stream):
    overrides.save_override(
        world.project.pk, Scope("tool", pattern="read"), {}, exempt=True, actor=SYSTEM, note="for the test"
    )
    server = world.model.script = StrictServer(
        shape, lambda asked: [call("read", path=f"{len(world.model.asked)}"), call()]
    )
    with serving() as url:
        agent = KeptConversation(world, shape, is_stream, [url])
        tools = [[one[1] for one in agent.turn().calls] for _ in range(6)]
    assert ["read"] in tools
    assert server.errors == []
