"""Microsoft Agent Framework with a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip(
    "agent_framework",
    reason="agent-framework-core is not installed: python3 manage.py test clients --install",
)

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)
from agent_framework import tool as framework_tool

from loopguard_client import HardStop
from loopguard_client.agent_framework import middleware

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, steps: list[list[str]], ids: str = "unique") -> None:
        super().__init__(function_invocation_configuration={"max_iterations": 100})
        self.steps, self.ids, self.asked = steps, ids, 0
        self.seen: list[Any] = []

    def _contents(self, messages: Any) -> list[Content]:
        self.asked += 1
        self.seen = list(messages)
        if self.asked > len(self.steps):
            return [Content.from_text("done")]
        return [
            Content.from_function_call(
                call_id(self.ids, self.asked, at), "search", arguments=json.dumps({"q": query})
            )
            for at, query in enumerate(self.steps[self.asked - 1])
        ]

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        contents = self._contents(messages)
        if not stream:

            async def answer() -> ChatResponse:
                return ChatResponse(messages=[Message("assistant", contents)])

            return answer()

        async def updates() -> Any:
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates)


def agent_of(model: ScriptedModel, guard: Any, tool: Any, session: str = "") -> Agent:
    search = framework_tool(name="search", approval_mode="never_require")(tool.search)
    return Agent(model, name="finder", tools=[search], middleware=middleware(guard, session=session))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, streamed
):
    model = ScriptedModel([["x"] * parallel] * MODEL_CALLS)
    agent = agent_of(model, guard, tool, name)
    if streamed:
        async for _ in agent.run("Find x.", stream=True):
            pass
    else:
        await agent.run("Find x.")
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    if parallel == 1:
        results = [
            str(one.result)
            for message in model.seen
            for one in message.contents
            if one.type == "function_result"
        ]
        assert results[:2] == ["0 hits"] * 2
        assert results[2].endswith("0 hits")
        assert results[3] == calls[3]["message"]
        assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool):
    session = AgentSession()
    for turn in range(8):
        await agent_of(ScriptedModel([["x"]]), guard, tool).run(
            f"Is x there at {turn} o'clock?", session=session
        )
    assert tool.runs == 8


async def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = ScriptedModel([["x"]] * 40)
    tools = [framework_tool(name="search", approval_mode="never_require")(search)]
    with guard.session(name), pytest.raises(HardStop, match="search"):
        await Agent(model, name="finder", tools=tools).run("Find x.")
    assert (tool.runs, model.asked) == (3, 8)


class TestFailures(AdapterFailures):
    package = "agent-framework-core"
    told = "the reason, as the last result"
    stop = "raises `MiddlewareTermination`, which ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(steps, ids)
        await agent_of(model, guard, tool, session).run("Find.")
        return model.asked
