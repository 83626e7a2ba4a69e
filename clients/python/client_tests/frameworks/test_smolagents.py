"""smolagents with a scripted model, as an agent that calls tools and as one that writes code."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip(
    "smolagents", reason="smolagents is not installed: python3 manage.py test clients --install"
)

from smolagents import CodeAgent, ToolCallingAgent
from smolagents import tool as smolagents_tool
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
)
from smolagents.utils import AgentError

from loopguard_client import HardStop
from loopguard_client.smolagents import guard_agent

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(Model):
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, steps: list[list[str]], ids: str = "unique", *, writes_code: bool = False) -> None:
        super().__init__(model_id="scripted")
        self.steps, self.ids, self.writes_code, self.asked = steps, ids, writes_code, 0
        self.seen = ""

    def generate(self, messages: Any, *_: Any, **__: Any) -> ChatMessage:
        self.asked += 1
        self.seen = str(messages)
        queries = self.steps[self.asked - 1] if self.asked <= len(self.steps) else []
        if self.writes_code:
            lines = [f"print(search({query!r}))" for query in queries] or ["final_answer('done')"]
            return ChatMessage(
                role=MessageRole.ASSISTANT, content="<code>\n" + "\n".join(lines) + "\n</code>"
            )
        calls = [
            ChatMessageToolCall(
                id=call_id(self.ids, self.asked, at),
                type="function",
                function=ChatMessageToolCallFunction(name="search", arguments={"q": query}),
            )
            for at, query in enumerate(queries)
        ]
        done = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": "done"})
        calls = calls or [ChatMessageToolCall(id="done", type="function", function=done)]
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=calls)


def agent_of(model: ScriptedModel, tool: Any, **values: Any) -> Any:
    def search(q: str) -> str:
        """Search the web.

        Args:
            q: What to search for.
        """
        return tool.search(q)

    kind = CodeAgent if model.writes_code else ToolCallingAgent
    return kind(tools=[smolagents_tool(search)], model=model, max_steps=100, verbosity_level=0, **values)


@pytest.mark.parametrize("writes_code", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, writes_code
):
    model = ScriptedModel([["x"] * parallel] * MODEL_CALLS, writes_code=writes_code)
    agent = agent_of(model, tool, name="finder")
    guard_agent(agent, guard, session=name)
    with pytest.raises(AgentError, match="interrupted"):
        agent.run("Find x.")
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        assert calls[3]["message"] in str(agent.memory.steps[4].observations)


@pytest.mark.parametrize("reset", [False, True])
def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool, name, reset):
    model = ScriptedModel([["x"], []] * 8)
    agent = agent_of(model, tool)
    guard_agent(agent, guard, session=name)
    for _ in range(8):
        agent.run("Is x there now?", reset=reset)
    assert tool.runs == 8


def test_what_an_agent_says_to_another_one_is_no_message_of_a_person(guard, server, tool, name):
    inner = agent_of(
        ScriptedModel([["x"], []] * MODEL_CALLS), tool, name="inner", description="Finds things."
    )
    outer_model = ScriptedModel([])
    outer = ToolCallingAgent(
        tools=[], model=outer_model, managed_agents=[inner], max_steps=20, verbosity_level=0
    )
    asks = ChatMessageToolCallFunction(name="inner", arguments={"task": "Find x, please."})

    def generate(*_: Any, **__: Any) -> ChatMessage:
        outer_model.asked += 1
        one = ChatMessageToolCall(id=f"call_{outer_model.asked}", type="function", function=asks)
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[one])

    outer_model.generate = generate  # type: ignore[method-assign]
    guard_agent(outer, guard, session=name)
    with pytest.raises(AgentError, match="interrupted"):
        outer.run("Find x.")
    assert tool.runs == 3
    assert outer_model.asked == 8
    assert guard.flush(20)
    assert len(server.calls(f"{name}/inner")) == 8


def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = ScriptedModel([["x"]] * 40)

    class Searches:
        def search(self, q: str) -> str:
            return search(q)

    with guard.session(name), pytest.raises(HardStop, match="search"):
        agent_of(model, Searches()).run("Find x.")
    assert (tool.runs, model.asked) == (3, 8)


class TestFailures(AdapterFailures):
    package = "smolagents"
    told = '`AgentError`: "Agent interrupted."; the reason is the last observation'
    stop = "calls `agent.interrupt()`"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(steps, ids)
        agent = agent_of(model, tool)
        guard_agent(agent, guard, session=session)
        with contextlib.suppress(AgentError):
            agent.run("Find.")
        return model.asked
