"""The snippet for Strands, with a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip(
    "strands", reason="strands-agents is not installed: python3 manage.py test clients --install"
)

from strands import Agent
from strands import tool as strands_tool
from strands.models import Model

from .failures import AdapterFailures, call_id
from .snippets import snippet

MODEL_CALLS = 10


class ScriptedModel(Model):
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, steps: list[list[str]], ids: str = "unique") -> None:
        self.steps, self.ids, self.asked = steps, ids, 0

    def update_config(self, **_: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        is_done = self.asked > len(self.steps)
        yield {"messageStart": {"role": "assistant"}}
        for at, query in enumerate([""] if is_done else self.steps[self.asked - 1]):
            use = {"name": "search", "toolUseId": call_id(self.ids, self.asked, at)}
            yield {"contentBlockStart": {"start": {} if is_done else {"toolUse": use}}}
            delta = {"text": "done"} if is_done else {"toolUse": {"input": json.dumps({"q": query})}}
            yield {"contentBlockDelta": {"delta": delta}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if is_done else "tool_use"}}


def agent_of(model: ScriptedModel, guard: Any, tool: Any, session: str) -> Agent:
    hooks = snippet("strands.hooks")["LoopGuardHooks"](guard.session(session))
    tools = [strands_tool(name="search")(tool.search)]
    return Agent(model=model, tools=tools, hooks=[hooks], callback_handler=None)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, streamed
):
    model = ScriptedModel([["x"] * parallel] * MODEL_CALLS)
    agent = agent_of(model, guard, tool, name)
    if streamed:
        async for _ in agent.stream_async("Find x."):
            pass
    else:
        await agent.invoke_async("Find x.")
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    texts = [
        part["toolResult"]["content"]
        for message in agent.messages
        for part in message["content"]
        if "toolResult" in part
    ]
    if parallel == 1:
        assert texts[0] == [{"text": "0 hits"}]
        assert texts[2][1:] == [{"text": "0 hits"}]
    assert guard.flush(20)
    assert [call["decision"] for call in server.calls(name)].count("block") == 4


class TestFailures(AdapterFailures):
    package = "strands-agents"
    told = "the reason, as the last result"
    stop = "sets `stop_event_loop`, which ends the run"
    rejected_ids = ("missing",)

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(steps, ids)
        await agent_of(model, guard, tool, session).invoke_async("Find.")
        return model.asked
