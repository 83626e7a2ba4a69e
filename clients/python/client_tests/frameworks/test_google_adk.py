"""The snippet for Google ADK, with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "google.adk", reason="google-adk is not installed: python3 manage.py test clients --install"
)

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from .failures import AdapterFailures, call_id
from .snippets import snippet

MODEL_CALLS = 10


class ScriptedModel(BaseLlm):
    """Makes the same calls in each of its first answers, then says that it is done."""

    steps: list[list[str]] = []
    ids: str = "unique"
    asked: int = 0

    async def generate_content_async(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        parts = [types.Part(text="done")]
        if self.asked <= len(self.steps):
            parts = [
                types.Part(
                    function_call=types.FunctionCall(
                        name="search", args={"q": query}, id=call_id(self.ids, self.asked, at) or None
                    )
                )
                for at, query in enumerate(self.steps[self.asked - 1])
            ]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def play(
    model: ScriptedModel, guard: Any, tool: Any, session: str, mode: StreamingMode = StreamingMode.NONE
) -> list[Any]:
    plugin = snippet("google.adk.plugins")["LoopGuardPlugin"](guard)
    agent = LlmAgent(name="finder", model=model, tools=[tool.search])
    runner = InMemoryRunner(agent=agent, app_name="test", plugins=[plugin])
    await runner.session_service.create_session(app_name="test", user_id="u", session_id=session)
    question = types.Content(role="user", parts=[types.Part(text="Find x.")])
    answers = []
    async for event in runner.run_async(
        user_id="u", session_id=session, new_message=question, run_config=RunConfig(streaming_mode=mode)
    ):
        answers += [response.response for response in event.get_function_responses()]
    return answers


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, mode, parallel
):
    model = ScriptedModel(model="scripted", steps=[["x"] * parallel] * MODEL_CALLS)
    answers = await play(model, guard, tool, name, mode)
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    if parallel == 1:
        assert answers[0] == {"result": "0 hits"}
        assert answers[2]["result"] == "0 hits"
        assert "search" in answers[3]["error"]
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    assert [call["decision"] for call in calls].count("block") == 4


class TestFailures(AdapterFailures):
    package = "google-adk"
    told = "the reason, as the last result"
    stop = "sets `end_invocation`, which ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(model="scripted", steps=steps, ids=ids)
        await play(model, guard, tool, session)
        return model.asked
