"""CrewAI with a scripted model that calls tools natively."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("crewai") is None:
    pytest.skip("crewai is not installed: python3 manage.py test clients --install", allow_module_level=True)
# Read when it is imported.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",
}

from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool as crewai_tool

from loopguard_client.crewai import CrewStopped, guard_crews

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(BaseLLM):
    """Makes the same calls in each of its first answers, then says that it is done."""

    steps: list[list[str]] = []
    asked: int = 0
    ids: str = "unique"
    history: list[Any] = []

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        self.asked += 1
        self.history = list(messages)
        if self.asked > len(self.steps):
            return "Final Answer: done"
        return [
            {
                "id": call_id(self.ids, self.asked, at),
                "type": "function",
                "function": {"name": "search", "arguments": json.dumps({"q": q})},
            }
            for at, q in enumerate(self.steps[self.asked - 1])
        ]

    def supports_function_calling(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def guarded(guard) -> Iterator[None]:
    undo = guard_crews(guard)
    yield
    undo()


def crew(model: ScriptedModel, tool: Any) -> Crew:
    def search(q: str) -> str:
        """Search the web."""
        return tool.search(q)

    guarded_tool = crewai_tool("search")(search)
    guarded_tool.cache_function = lambda *_: False
    agent = Agent(
        role="finder",
        goal="Find x.",
        backstory="None.",
        llm=model,
        tools=[guarded_tool],
        cache=False,
        max_iter=300,
    )
    task = Task(description="Find x.", expected_output="x", agent=agent)
    return Crew(agents=[agent], tasks=[task], cache=False)


@pytest.mark.parametrize("parallel", [1, 6])
def test_three_identical_calls_run_and_the_eighth_ends_the_run(guard, server, tool, parallel):
    model = ScriptedModel(model="scripted", steps=[["x"] * parallel] * MODEL_CALLS)
    team = crew(model, tool)
    with pytest.raises(CrewStopped, match="search"):
        team.kickoff()
    assert tool.runs == 3
    assert guard.flush(20)
    calls = server.calls(str(team.id))
    assert {call["agent"] for call in calls} == {"finder"}
    assert [call["decision"] for call in calls].count("block") == 4
    if parallel == 1:
        assert model.asked == 8
        answers = [one["content"] for one in model.history if one["role"] == "tool"]
        assert answers[0] == "0 hits"
        assert answers[2].endswith("\n\n0 hits")
        assert answers[3] == calls[3]["message"]


async def test_a_crew_in_an_event_loop_belongs_to_the_surrounding_session(guard, server, tool, name):
    model = ScriptedModel(model="scripted", steps=[["x"]] * MODEL_CALLS)
    async with guard.session(name):
        with pytest.raises(CrewStopped):
            await crew(model, tool).kickoff_async()
    assert tool.runs == 3
    assert guard.flush(20)
    assert len(server.calls(name)) == 8


class TestFailures(AdapterFailures):
    @pytest.fixture
    def guarded(self) -> None:
        """These tests have guards of their own."""

    async def play(self, guard, tool, session, steps, ids="unique"):
        undo = guard_crews(guard, session=session)
        try:
            await crew(ScriptedModel(model="scripted", steps=steps, ids=ids), tool).kickoff_async()
        except CrewStopped:
            pass
        finally:
            undo()
