"""Haystack with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "haystack", reason="haystack-ai is not installed: python3 manage.py test clients --install"
)

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool as HaystackTool

from loopguard_client import HardStop
from loopguard_client.haystack import hooks

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


@component
class ScriptedModel:
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, steps: list[list[str]], ids: str = "unique") -> None:
        self.steps, self.ids, self.asked = steps, ids, 0
        self.seen: list[ChatMessage] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        self.asked += 1
        self.seen = list(messages)
        if self.asked > len(self.steps):
            return {"replies": [ChatMessage.from_assistant("done")]}
        calls = [
            ToolCall("search", {"q": query}, id=call_id(self.ids, self.asked, at) or None)
            for at, query in enumerate(self.steps[self.asked - 1])
        ]
        return {"replies": [ChatMessage.from_assistant(tool_calls=calls)]}


def agent_of(model: ScriptedModel, guard: Any, tool: Any, session: str) -> Agent:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    search = HaystackTool("search", "Search the web.", parameters, function=tool.search)
    own = hooks(guard, session=session, agent="finder")
    return Agent(chat_generator=model, tools=[search], hooks=own, max_agent_steps=100)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, is_async
):
    model = ScriptedModel([["x"] * parallel] * MODEL_CALLS)
    agent, question = agent_of(model, guard, tool, name), [ChatMessage.from_user("Find x.")]
    done = await agent.run_async(question) if is_async else agent.run(question)
    assert done["exit_reason"] == "loopguard"
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    assert "search" in done["messages"][-1].tool_call_result.result
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        results = [one.tool_call_result.result for one in model.seen if one.tool_call_result]
        assert results[:2] == ["0 hits"] * 2
        assert results[2].endswith("\n\n0 hits")
        assert results[3] == calls[3]["message"]
        assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


async def test_the_other_calls_of_an_answer_run(guard, tool, name):
    model = ScriptedModel([["x"]] * 3 + [["x", "y"]])
    done = await agent_of(model, guard, tool, name).run_async([ChatMessage.from_user("Find x.")])
    assert tool.runs == 4
    assert done["messages"][-1].text == "done"
    asked = [call.arguments["q"] for one in model.seen for call in one.tool_calls]
    answered = [one.tool_call_result.origin.arguments["q"] for one in model.seen if one.tool_call_result]
    assert sorted(asked) == sorted(answered) == ["x"] * 4 + ["y"]


async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool, name):
    history: list[ChatMessage] = []
    for turn in range(8):
        history.append(ChatMessage.from_user(f"Is x there at {turn} o'clock?"))
        history = agent_of(ScriptedModel([["x"]]), guard, tool, name).run(history)["messages"]
    assert tool.runs == 8


def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = ScriptedModel([["x"]] * 40)
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    agent = Agent(
        chat_generator=model,
        tools=[HaystackTool("search", "Search.", parameters, function=search)],
        max_agent_steps=100,
    )
    with guard.session(name), pytest.raises(HardStop, match="search"):
        agent.run([ChatMessage.from_user("Find x.")])
    assert (tool.runs, model.asked) == (3, 8)


class TestFailures(AdapterFailures):
    package = "haystack-ai"
    told = "the reason, as the last message; `exit_reason` is `loopguard`"
    stop = "sets `stop_run`, which ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(steps, ids)
        await agent_of(model, guard, tool, session).run_async([ChatMessage.from_user("Find.")])
        return model.asked
