"""Requests that a client sends again because it did not get the answer: the calls of an answer that is given again count once."""

from dataclasses import replace

import pytest

from tests.support.model_answers import PATHS, answered, call

from .agents import Agent
from .conftest import World, serving
from .forms import forms_in_turns
from .test_guarding import decisions_of

STUCK = ["allow", "allow", "warn", "block", "block", "block"]


@forms_in_turns
@pytest.mark.parametrize("marks", [("1", "2", "3"), ("",)], ids=["marked", "unmarked"])
def test_an_answer_that_was_lost_and_given_again_counts_once(world: World, shape, is_stream, marks):
    world.model.script = lambda asked: answered(asked, shape, "", [call()])
    agent = Agent(world, shape, is_stream)
    for mark in ("", *marks):
        agent.headers = {"x-stainless-retry-count": mark} if mark else {}
        given = agent.ask()
    assert decisions_of() == ["allow"]
    agent.messages += given.messages
    agent.headers = {}
    results = [agent.result(one[0], "0 hits") for one in given.calls]
    agent.messages += [{"role": "user", "content": results}] if shape == "anthropic" else results
    agent.run()
    assert agent.runs == 2, "of the identical calls after the first"
    assert decisions_of() == STUCK


@pytest.mark.parametrize("shape", PATHS)
def test_processes_agree_on_answers_that_are_given_again(world: World, shape):
    world.model.script = lambda asked: answered(asked, shape, "", [call(), call()])
    with serving() as url:
        first, second = Agent(world, shape), Agent(replace(world, url=url), shape)
        first.ask()
        for turn in range(3):
            agent, other = (second, first) if turn % 2 == 0 else (first, second)
            agent.turn()
            other.messages = [*agent.messages]
    assert len(decisions_of()) == 6
    assert decisions_of()[4:] == ["warn"] * 2


def test_the_same_request_with_another_answer_counts_again(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call(q=f"{len(world.model.asked)}")])
    agent = Agent(world)
    for _ in range(3):
        agent.ask()
    assert decisions_of() == ["allow"] * 3


def test_a_branch_counts_again_once_results_were_sent(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    agent = Agent(world)
    base = [*agent.messages]
    agent.turn()
    agent.turn()
    agent.messages = base
    assert agent.turn().calls
    assert len(decisions_of()) == 3


def test_an_agent_that_never_sends_results_does_not_go_unnoticed(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    agent = Agent(world)
    given = [bool(agent.ask().calls) for _ in range(12)]
    assert decisions_of()[:4] == ["allow", "allow", "allow", "block"]
    assert given == [True] * 9 + [False] * 3, "every third request counts"


def test_ids_used_again_after_a_cut_beginning_are_new_calls(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call(call_id="call_0")])
    agent = Agent(world)
    for _ in range(3):
        agent.messages = [agent.messages[0], *agent.messages[-2:]] if agent.runs else agent.messages
        agent.turn()
    assert decisions_of() == ["allow", "allow", "warn"]
