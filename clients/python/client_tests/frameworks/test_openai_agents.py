"""The OpenAI Agents SDK with its own scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip(
    "agents", reason="openai-agents is not installed: python3 manage.py test clients --install"
)

from agents import Agent, RunConfig, Runner, ToolInputGuardrailTripwireTriggered, function_tool, handoff
from agents.testing import ScriptedModel, assistant_message, function_call

from loopguard_client.openai_agents import guard_agents

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


@pytest.fixture(autouse=True)
def guarded(guard) -> Iterator[None]:
    undo = guard_agents(guard)
    yield
    undo()


@pytest.fixture
def search(tool) -> Any:
    return function_tool(tool.search)


def scripted(parallel: int = 1, *, name: str = "search", arguments: str = '{"q": "x"}') -> ScriptedModel:
    steps = [
        [function_call(name, arguments, call_id=f"{name}_{number}_{at}") for at in range(parallel)]
        for number in range(MODEL_CALLS)
    ]
    return ScriptedModel([*steps, [assistant_message("done")]])


async def play(agent: Agent, question: str, session: str, *, streamed: bool) -> Any:
    configuration = RunConfig(group_id=session)
    if not streamed:
        return await Runner.run(agent, question, run_config=configuration, max_turns=30)
    run = Runner.run_streamed(agent, question, run_config=configuration, max_turns=30)
    async for _ in run.stream_events():
        pass
    return run


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, search, name, streamed, parallel
):
    model = scripted(parallel)
    agent = Agent("finder", model=model, tools=[search])
    with pytest.raises(ToolInputGuardrailTripwireTriggered) as stopped:
        await play(agent, "Find x.", name, streamed=streamed)
    assert "search" in stopped.value.output.output_info.message
    assert tool.runs == 3
    assert len(model.calls) == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    decisions = [call["decision"] for call in calls]
    assert decisions.count("block") == 4
    if parallel == 1:
        assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3
        outputs = [
            item
            for item in model.calls[7].input
            if isinstance(item, dict) and item.get("type") == "function_call_output"
        ]
        assert outputs[0]["output"] == "0 hits"
        assert outputs[2]["output"].endswith("\n\n0 hits")
        assert outputs[3]["output"] == calls[3]["message"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(
    guard, tool, search, name, streamed
):
    for turn in range(8):
        call = function_call("search", '{"q": "x"}', call_id=f"search_{turn}")
        model = ScriptedModel([[call], [assistant_message("Nothing yet.")]])
        agent = Agent("finder", model=model, tools=[search])
        await play(agent, f"Is x there at {turn} o'clock?", name, streamed=streamed)
    assert tool.runs == 8


async def test_tools_behind_a_hand_off_are_guarded(guard, server, tool, search, name):
    worker = Agent("worker", model=scripted(), tools=[search])
    first = handoff(worker)
    boss = Agent(
        "boss", model=ScriptedModel([[function_call(first.tool_name, "{}", call_id="h1")]]), handoffs=[first]
    )
    with pytest.raises(ToolInputGuardrailTripwireTriggered):
        await play(boss, "Find x.", name, streamed=False)
    assert tool.runs == 3
    assert guard.flush(20)
    assert server.calls(name)[0]["agent"] == "worker"


async def test_tools_of_an_agent_that_is_a_tool_are_guarded(guard, server, tool, search, name):
    inner = Agent("inner", model=scripted(), tools=[search])
    as_tool = inner.as_tool("ask_inner", "Asks.", failure_error_function=None)
    outer = Agent(
        "outer",
        model=ScriptedModel(
            [[function_call("ask_inner", '{"input": "x"}', call_id="o1")], [assistant_message("done")]]
        ),
        tools=[as_tool],
    )
    with pytest.raises(ToolInputGuardrailTripwireTriggered):
        await play(outer, "Find x.", name, streamed=False)
    assert tool.runs == 3
    assert guard.flush(20)
    assert server.session(f"{name}/ask_inner")["parent_session"] == name
    assert len(server.calls(f"{name}/ask_inner")) == 8
    assert [call["tool"] for call in server.calls(name)] == ["ask_inner"]


async def test_an_agent_that_is_called_as_a_tool_again_and_again_is_stopped(guard, tool, search, name):
    answers = [[assistant_message("I do not know.")] for _ in range(MODEL_CALLS)]
    inner = Agent("inner", model=ScriptedModel(answers), tools=[search])
    outer = Agent(
        "outer",
        model=scripted(name="ask_inner", arguments='{"input": "x"}'),
        tools=[inner.as_tool("ask_inner", "Asks.")],
    )
    with pytest.raises(ToolInputGuardrailTripwireTriggered):
        await play(outer, "Find x.", name, streamed=False)
    assert len(inner.model.calls) == 3


async def test_runs_without_a_group_are_sessions_of_their_own(tool, search):
    for _ in range(2):
        tool.runs = 0
        with pytest.raises(ToolInputGuardrailTripwireTriggered):
            await Runner.run(Agent("finder", model=scripted(), tools=[search]), "Find x.", max_turns=30)
        assert tool.runs == 3


class TestFailures(AdapterFailures):
    package = "openai-agents"
    told = "`ToolInputGuardrailTripwireTriggered`; the verdict is its `output_info`"
    stop = "raises out of the run"
    rejected_ids = ("reused", "missing")

    @pytest.fixture
    def guarded(self) -> None:
        """These tests have guards of their own."""

    async def play(self, guard, tool, session, steps, ids="unique"):
        answers = [
            [
                function_call("search", {"q": q}, call_id=call_id(ids, answer, at))
                for at, q in enumerate(queries)
            ]
            for answer, queries in enumerate(steps)
        ]
        model = ScriptedModel([*answers, [assistant_message("done")]])
        agent = Agent(
            "finder",
            model=model,
            tools=[function_tool(tool.search)],
        )
        undo = guard_agents(guard)
        try:
            await Runner.run(agent, "Find.", run_config=RunConfig(group_id=session), max_turns=300)
        except ToolInputGuardrailTripwireTriggered:
            pass
        finally:
            undo()
        return len(model.calls)
