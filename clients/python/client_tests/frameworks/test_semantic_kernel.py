"""Semantic Kernel with a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip(
    "semantic_kernel", reason="semantic-kernel is not installed: python3 manage.py test clients --install"
)

from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
    StreamingChatMessageContent,
    TextContent,
)
from semantic_kernel.functions import kernel_function

from loopguard_client import HardStop
from loopguard_client.semantic_kernel import guard_kernel

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(ChatCompletionClientBase):
    """Makes the same calls in each of its first answers, then says that it is done."""

    SUPPORTS_FUNCTION_CALLING = True

    steps: list[list[str]] = []
    ids: str = "unique"
    asked: int = 0
    seen: list[Any] = []

    def _items(self, history: Any) -> list[Any]:
        self.asked += 1
        self.seen = list(history.messages)
        if self.asked > len(self.steps):
            return []
        return [
            FunctionCallContent(
                id=call_id(self.ids, self.asked, at) or None,
                index=at,
                name="search",
                arguments=json.dumps({"q": query}),
            )
            for at, query in enumerate(self.steps[self.asked - 1])
        ]

    async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> list[Any]:
        items = self._items(chat_history) or [TextContent(text="done")]
        return [ChatMessageContent(role=AuthorRole.ASSISTANT, items=items)]

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: Any, settings: Any, function_invoke_attempt: int = 0
    ) -> Any:
        items = self._items(chat_history)
        text = {} if items else {"content": "done"}
        yield [StreamingChatMessageContent(role=AuthorRole.ASSISTANT, choice_index=0, items=items, **text)]

    def _update_function_choice_settings_callback(self) -> Any:
        return lambda *_: None


def kernel_of(model: ScriptedModel, tool: Any) -> Kernel:
    class Web:
        @kernel_function(name="search", description="Search the web.")
        def search(self, q: str) -> str:
            return tool.search(q)

    kernel = Kernel()
    kernel.add_service(model)
    kernel.add_plugin(Web(), "web")
    return kernel


def agent_of(kernel: Kernel) -> ChatCompletionAgent:
    behavior = FunctionChoiceBehavior.Auto()
    behavior.maximum_auto_invoke_attempts = 100
    return ChatCompletionAgent(kernel=kernel, name="finder", function_choice_behavior=behavior)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, streamed
):
    model = ScriptedModel(ai_model_id="scripted", steps=[["x"] * parallel] * MODEL_CALLS)
    kernel = kernel_of(model, tool)
    guard_kernel(kernel, guard, session=name, agent="finder")
    if streamed:
        async for _ in agent_of(kernel).invoke_stream("Find x."):
            pass
    else:
        reply = await agent_of(kernel).get_response("Find x.")
        assert "search" in str(reply.message.items[-1].result)
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        results = [
            str(item.result)
            for message in model.seen
            for item in message.items
            if isinstance(item, FunctionResultContent)
        ]
        assert results[:2] == ["0 hits"] * 2
        assert results[2].endswith("\n\n0 hits")
        assert results[3] == calls[3]["message"]
        assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, tool, name):
    history = ChatHistory()
    for turn in range(8):
        kernel = kernel_of(ScriptedModel(ai_model_id="scripted", steps=[["x"]]), tool)
        guard_kernel(kernel, guard, session=name)
        history.add_user_message(f"Is x there at {turn} o'clock?")
        async for answer in agent_of(kernel).invoke(history.messages):
            history.add_message(answer.message)
    assert tool.runs == 8


async def test_a_kernel_that_is_no_longer_guarded_runs_all_calls(guard, tool, name):
    kernel = kernel_of(ScriptedModel(ai_model_id="scripted", steps=[["x"]] * MODEL_CALLS), tool)
    guard_kernel(kernel, guard, session=name)()
    await agent_of(kernel).get_response("Find x.")
    assert tool.runs == MODEL_CALLS


async def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = ScriptedModel(ai_model_id="scripted", steps=[["x"]] * 40)

    class Searches:
        def search(self, q: str) -> str:
            return search(q)

    with guard.session(name), pytest.raises(HardStop, match="search"):
        await agent_of(kernel_of(model, Searches())).get_response("Find x.")
    assert (tool.runs, model.asked) == (3, 8)


class TestFailures(AdapterFailures):
    package = "semantic-kernel"
    told = "the reason, as the last content"
    stop = "sets `terminate`, which ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(ai_model_id="scripted", steps=steps, ids=ids)
        kernel = kernel_of(model, tool)
        guard_kernel(kernel, guard, session=session)
        await agent_of(kernel).get_response("Find.")
        return model.asked
