"""pydantic-ai with its own scripted model."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip(
    "pydantic_ai", reason="pydantic-ai is not installed: python3 manage.py test clients --install"
)

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.usage import UsageLimits

from loopguard_client import RunStopped
from loopguard_client.pydantic_ai import LoopGuard

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class Script:
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, parallel: int = 1, steps: list[list[str]] | None = None, ids: str = "unique") -> None:
        self.asked = 0
        self.history: list[Any] = []
        self._steps, self._ids = steps or [["x"] * parallel] * MODEL_CALLS, ids
        self.model = FunctionModel(self.answer, stream_function=self.stream)

    def _next(self, messages: list[Any]) -> list[str]:
        self.asked += 1
        self.history = messages
        return self._steps[self.asked - 1] if self.asked <= len(self._steps) else []

    def answer(self, messages: list[Any], _: Any) -> ModelResponse:
        calls = [
            ToolCallPart("search", {"q": query}, call_id(self._ids, self.asked, at))
            for at, query in enumerate(self._next(messages))
        ]
        return ModelResponse(calls or [TextPart("done")])

    async def stream(self, messages: list[Any], _: Any) -> Any:
        queries = self._next(messages)
        for at, query in enumerate(queries):
            yield {
                at: DeltaToolCall("search", '{"q": "' + query + '"}', tool_call_id=f"call_{self.asked}_{at}")
            }
        if not queries:
            yield "done"

    def results(self) -> list[Any]:
        return [
            part.content
            for message in self.history
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]


async def play(agent: Agent, *, streamed: bool) -> Any:
    if not streamed:
        return (await agent.run("Find x.")).output
    async with agent.run_stream("Find x.") as run:
        return await run.get_output()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, streamed, parallel
):
    script = Script(parallel)
    agent = Agent(
        script.model, name="finder", tools=[tool.search], capabilities=[LoopGuard(guard, session=name)]
    )
    with pytest.raises(RunStopped, match="search"):
        await play(agent, streamed=streamed)
    assert tool.runs == 3
    assert script.asked == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        assert script.results()[:2] == ["0 hits"] * 2
        assert script.results()[2].endswith("\n\n0 hits")
        assert script.results()[3] == calls[3]["message"]
        assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


@pytest.mark.parametrize("question", ["Is x there now?", "Is x there at {} o'clock?"])
async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool, name, question):
    agent = Agent(Script().model, tools=[tool.search], capabilities=[LoopGuard(guard, session=name)])
    history: list[Any] = []
    for turn in range(8):
        with agent.override(model=Script(steps=[["x"]]).model):
            run = await agent.run(question.format(turn), message_history=history)
        history = run.all_messages()
    assert tool.runs == 8


async def test_what_an_agent_says_to_another_one_is_no_message_of_a_person(guard, server, tool, name):
    inner = Agent(
        Script().model, tools=[tool.search], capabilities=[LoopGuard(guard, session=f"{name}-inner")]
    )

    async def ask(q: str) -> str:
        """Ask another agent."""
        with inner.override(model=Script(steps=[["x"]]).model):
            return str((await inner.run(f"Find {q}, please.")).output)

    steps = [[f"x{number}"] for number in range(9)]
    outer = Agent(Script(steps=steps).model, capabilities=[LoopGuard(guard, session=name)])
    outer.tool_plain(name="search")(ask)
    with pytest.raises(RunStopped):
        await outer.run("Find x.")
    assert tool.runs == 3


class TestFailures(AdapterFailures):
    package = "pydantic-ai-slim"
    told = "`RunStopped` with the reason"
    stop = "raises out of the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        script = Script(steps=steps, ids=ids)
        agent = Agent(script.model, tools=[tool.search], capabilities=[LoopGuard(guard, session=session)])
        with contextlib.suppress(RunStopped):
            await agent.run("Find.", usage_limits=UsageLimits(request_limit=None))
        return script.asked
