"""Agno with a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("agno", reason="agno is not installed: python3 manage.py test clients --install")

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse

from loopguard_client import HardStop
from loopguard_client.agno import tool_hook

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(Model):
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, steps: list[list[str]], ids: str = "unique") -> None:
        super().__init__(id="scripted", name="scripted", provider="none")
        self.steps, self.ids, self.asked = steps, ids, 0
        self.seen: list[Any] = []

    def _answer(self, messages: list[Any]) -> ModelResponse:
        self.asked += 1
        self.seen = list(messages)
        if self.asked > len(self.steps):
            return ModelResponse(role="assistant", content="done")
        calls = [
            {
                "id": call_id(self.ids, self.asked, at),
                "type": "function",
                "function": {"name": "search", "arguments": json.dumps({"q": query})},
            }
            for at, query in enumerate(self.steps[self.asked - 1])
        ]
        return ModelResponse(role="assistant", tool_calls=calls)

    def invoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        return self._answer(messages)

    async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        return self._answer(messages)

    def invoke_stream(self, messages: Any, *_: Any, **__: Any) -> Any:
        yield self._answer(messages)

    async def ainvoke_stream(self, messages: Any, *_: Any, **__: Any) -> Any:
        yield self._answer(messages)

    def _parse_provider_response(self, response: Any, **_: Any) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response


def agent_of(model: ScriptedModel, guard: Any, search: Any, session: str = "") -> Agent:
    return Agent(name="finder", model=model, tools=[search], tool_hooks=[tool_hook(guard, session=session)])


async def play(agent: Agent, way: str, question: str = "Find x.", session: str | None = None) -> None:
    if way == "run":
        agent.run(question, session_id=session)
    elif way == "streamed":
        for _ in agent.run(question, session_id=session, stream=True):
            pass
    elif way == "arun":
        await agent.arun(question, session_id=session)
    else:
        async for _ in agent.arun(question, session_id=session, stream=True):
            pass


@pytest.mark.parametrize("way", ["run", "streamed", "arun", "arun streamed"])
@pytest.mark.parametrize("parallel", [1, 6])
@pytest.mark.parametrize("is_async", [False, True])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, way, parallel, is_async
):
    async def search(q: str) -> str:
        """Search the web."""
        return tool.search(q)

    if is_async and not way.startswith("arun"):
        pytest.skip("Agno itself does not run such tools.")
    model = ScriptedModel([["x"] * parallel] * MODEL_CALLS)
    await play(agent_of(model, guard, search if is_async else tool.search), way, session=name)
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        results = [one.content for one in model.seen if one.role == "tool"]
        assert results[:2] == ["0 hits"] * 2
        assert results[2].endswith("\n\n0 hits")
        assert results[3] == calls[3]["message"]


async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool, name):
    for turn in range(8):
        agent = agent_of(ScriptedModel([["x"]]), guard, tool.search, name)
        await play(agent, "run", f"Is x there at {turn} o'clock?")
    assert tool.runs == 8


def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = ScriptedModel([["x"]] * 40)
    agent = Agent(model=model, tools=[search])
    with guard.session(name), pytest.raises(HardStop, match="search"):
        agent.run("Find x.")
    assert (tool.runs, model.asked) == (3, 8)


class TestFailures(AdapterFailures):
    package = "agno"
    told = "the reason, as the last message"
    stop = "raises `StopAgentRun`, which ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(steps, ids)
        await play(agent_of(model, guard, tool.search, session), "arun", "Find.")
        return model.asked
