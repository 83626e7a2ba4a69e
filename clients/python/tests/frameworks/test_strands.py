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

from .snippets import snippet

MODEL_CALLS = 10


class ScriptedModel(Model):
    """Makes the same calls in each of its first answers, then says that it is done."""

    def __init__(self, parallel: int) -> None:
        self.parallel, self.asked = parallel, 0

    def update_config(self, **_: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        is_done = self.asked > MODEL_CALLS
        yield {"messageStart": {"role": "assistant"}}
        for at in range(1 if is_done else self.parallel):
            use = {"name": "search", "toolUseId": f"call_{self.asked}_{at}"}
            yield {"contentBlockStart": {"start": {} if is_done else {"toolUse": use}}}
            delta = {"text": "done"} if is_done else {"toolUse": {"input": json.dumps({"q": "x"})}}
            yield {"contentBlockDelta": {"delta": delta}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if is_done else "tool_use"}}


@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(guard, server, tool, name, parallel):
    model = ScriptedModel(parallel)
    hooks = snippet("strands.hooks")["LoopGuardHooks"](guard.session(name))
    agent = Agent(
        model=model, tools=[strands_tool(name="search")(tool.search)], hooks=[hooks], callback_handler=None
    )
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
