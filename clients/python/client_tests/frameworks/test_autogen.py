"""AutoGen AgentChat with a scripted model, alone and in a team."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

pytest.importorskip(
    "autogen_agentchat", reason="autogen-agentchat is not installed: python3 manage.py test clients --install"
)

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from autogen_core.tools import FunctionTool, StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient

from loopguard_client import RunStopped
from loopguard_client.autogen import GuardedWorkbench

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


def model_of(steps: list[list[str]], ids: str = "unique") -> ReplayChatCompletionClient:
    usage = RequestUsage(prompt_tokens=1, completion_tokens=1)
    answers: list[Any] = [
        CreateResult(
            finish_reason="function_calls",
            content=[
                FunctionCall(call_id(ids, number, at), json.dumps({"q": query}), "search")
                for at, query in enumerate(queries)
            ],
            usage=usage,
            cached=False,
        )
        for number, queries in enumerate(steps, 1)
    ]
    return ReplayChatCompletionClient(
        [*answers, "done"],
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "family": "unknown",
            "structured_output": False,
        },
    )


def agent_of(model: Any, guard: Any, tool: Any, session: str, iterations: int = 100) -> AssistantAgent:
    tools = StaticWorkbench([FunctionTool(tool.search, "Search the web.", name="search")])
    guarded = GuardedWorkbench(guard, tools, session=session, agent="finder")
    return AssistantAgent("finder", model, workbench=guarded, max_tool_iterations=iterations)


async def play(agent: AssistantAgent, *, streamed: bool) -> None:
    if not streamed:
        await agent.run(task="Find x.")
        return
    async for _ in agent.run_stream(task="Find x."):
        pass


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, streamed
):
    model = model_of([["x"] * parallel] * MODEL_CALLS)
    agent = agent_of(model, guard, tool, name)
    with pytest.raises(RunStopped, match="search"):
        await play(agent, streamed=streamed)
    assert tool.runs == 3
    assert len(model.create_calls) == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        results = [
            one.content
            for message in model.create_calls[-1]["messages"]
            if message.type == "FunctionExecutionResultMessage"
            for one in message.content
        ]
        assert results[:2] == ["0 hits"] * 2
        assert results[2].endswith("0 hits")
        assert results[3] == calls[3]["message"]


async def test_a_team_ends_when_one_of_its_agents_is_stopped(guard, tool, name):
    model = model_of([["x"]] * 40)
    agent = agent_of(model, guard, tool, name, iterations=1)
    team = RoundRobinGroupChat([agent], termination_condition=MaxMessageTermination(40))
    with pytest.raises(RuntimeError, match="search"):
        await team.run(task="Find x.")
    assert tool.runs == 3
    assert len(model.create_calls) == 8


async def test_an_agent_goes_on_when_its_session_may_go_on(guard, server, tool, name):
    model = model_of([["x"]] * 8 + [["y"]])
    agent = agent_of(model, guard, tool, name)
    with pytest.raises(RunStopped):
        await agent.run(task="Find x.")
    server.post(f"/sessions/{name}/resume", {})
    await agent.run(task="Find y instead.")
    assert tool.runs == 4


class TestFailures(AdapterFailures):
    package = "autogen-agentchat"
    told = "`RunStopped` with the reason; from a team, `RuntimeError`"
    stop = "raises before the next request to the model"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = model_of(steps, ids)
        with contextlib.suppress(RunStopped):
            await agent_of(model, guard, tool, session).run(task="Find.")
        return len(model.create_calls)
