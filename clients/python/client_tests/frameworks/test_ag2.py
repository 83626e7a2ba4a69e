"""AG2 with a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("ag2", reason="ag2 is not installed: python3 manage.py test clients --install")

from ag2 import Agent, MemoryStream
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig, TrackingConfig

from loopguard_client import HardStop
from loopguard_client.ag2 import middleware

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


def model_of(steps: list[list[str]], ids: str = "unique") -> TrackingConfig:
    answers = [
        [
            ToolCallEvent(id=call_id(ids, number, at), name="search", arguments=json.dumps({"q": query}))
            for at, query in enumerate(queries)
        ]
        for number, queries in enumerate(steps, 1)
    ]
    return TrackingConfig(TestConfig(*answers, "done", raise_tool_errors=False))


def agent_of(model: Any, guard: Any, tool: Any, session: str = "") -> Agent:
    return Agent(
        "finder",
        "Find.",
        config=model,
        tools=[tool.search],
        middleware=[middleware(guard, session=session, agent="finder")],
    )


@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(guard, server, tool, name, parallel):
    model = model_of([["x"] * parallel] * MODEL_CALLS)
    reply = await agent_of(model, guard, tool, name).ask("Find x.")
    assert tool.runs == 3
    assert len(model.calls) == (8 if parallel == 1 else 2)
    assert "search" in str(reply.body)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        seen = [
            [part.content for part in one.args[0].results[0].result.parts]
            for one in model.mock.call_args_list[1:]
        ]
        assert seen[:2] == [["0 hits"]] * 2
        assert seen[2][1:] == ["0 hits"]
        assert seen[3] == [calls[3]["message"]]
        assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool):
    stream = MemoryStream()
    for turn in range(8):
        await agent_of(model_of([["x"]]), guard, tool).ask(f"Is x there at {turn} o'clock?", stream=stream)
    assert tool.runs == 8


async def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = model_of([["x"]] * 40)
    agent = Agent("finder", "Find.", config=model, tools=[search])
    with guard.session(name), pytest.raises(HardStop, match="search"):
        await agent.ask("Find x.")
    assert (tool.runs, len(model.calls)) == (3, 8)


class TestFailures(AdapterFailures):
    package = "ag2"
    told = "the reason, as the answer"
    stop = "returns a final result, which ends the run"
    rejected_ids = ("missing",)

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = model_of(steps, ids)
        await agent_of(model, guard, tool, session).ask("Find.")
        return len(model.calls)
