"""LlamaIndex with a scripted model: an agent, and a workflow of agents."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "llama_index.core", reason="llama-index-core is not installed: python3 manage.py test clients --install"
)

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, MessageRole
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context

from loopguard_client import HardStop
from loopguard_client.llama_index import guard_tools

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(FunctionCallingLLM):
    """Makes the same calls in each of its first answers, then says that it is done."""

    steps: list[list[str]] = []
    ids: str = "unique"
    asked: int = 0
    seen: list[Any] = []

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True)

    def _prepare_chat_with_tools(
        self, tools: Any, user_msg: Any = None, chat_history: Any = None, **_: Any
    ) -> dict[str, Any]:
        return {"messages": list(chat_history or [])}

    def get_tool_calls_from_response(self, response: Any, **_: Any) -> list[ToolSelection]:
        return response.additional_kwargs.get("calls", [])

    async def achat(self, messages: Any, **_: Any) -> ChatResponse:
        self.asked += 1
        self.seen = list(messages)
        calls = [
            ToolSelection(
                tool_id=call_id(self.ids, self.asked, at), tool_name="search", tool_kwargs={"q": query}
            )
            for at, query in enumerate(self.steps[self.asked - 1] if self.asked <= len(self.steps) else [])
        ]
        text = "" if calls else "done"
        message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
        return ChatResponse(message=message, additional_kwargs={"calls": calls})

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        answer = await self.achat(messages, **kwargs)

        async def parts() -> Any:
            yield answer

        return parts()

    def chat(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def complete(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def stream_chat(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def stream_complete(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def acomplete(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def astream_complete(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def agent_of(
    model: ScriptedModel, guard: Any, search: Any, session: str = "", **values: Any
) -> FunctionAgent:
    tools = guard_tools(guard, [search], session=session, agent="finder")
    return FunctionAgent(name="finder", description="Finds.", tools=tools, llm=model, **values)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("parallel", [1, 6])
@pytest.mark.parametrize("is_workflow", [False, True])
async def test_three_identical_calls_run_and_the_eighth_ends_the_run(
    guard, server, tool, name, parallel, streamed, is_workflow
):
    model = ScriptedModel(steps=[["x"] * parallel] * MODEL_CALLS)
    agent: Any = agent_of(model, guard, tool.search, name, streaming=streamed)
    if is_workflow:
        agent = AgentWorkflow(agents=[agent], root_agent="finder")
    answer = await agent.run("Find x.", max_iterations=100)
    assert tool.runs == 3
    assert model.asked == (8 if parallel == 1 else 2)
    assert "search" in str(answer)
    assert guard.flush(20)
    calls = server.calls(name)
    assert {call["agent"] for call in calls} == {"finder"}
    if parallel == 1:
        results = [str(one.content) for one in model.seen if one.role == MessageRole.TOOL]
        assert results[:2] == ["0 hits"] * 2
        assert results[2].endswith("\n\n0 hits")
        assert results[3] == calls[3]["message"]


async def test_a_tool_that_takes_the_context_is_called_with_it(guard, server, tool, name):
    async def search(ctx: Context, q: str) -> str:
        """Search the web."""
        await ctx.store.set("searched", q)
        return tool.search(q)

    search.__annotations__["ctx"] = Context  # LlamaIndex reads no annotation that is a text
    model = ScriptedModel(steps=[["x"], ["y"]])
    answer = await agent_of(model, guard, search, name).run("Find x.")
    assert str(answer) == "done"
    assert tool.runs == 2
    assert guard.flush(20)
    assert [call["arguments"] for call in server.calls(name)] == ['{"q":"x"}', '{"q":"y"}']


async def test_a_tool_whose_result_is_the_answer_stays_one(guard, tool, name):
    search = FunctionTool.from_defaults(tool.search, return_direct=True)
    model = ScriptedModel(steps=[["x"]] * MODEL_CALLS)
    assert str(await agent_of(model, guard, search, name).run("Find x.")) == "0 hits"
    assert model.asked == 1


async def test_the_calls_of_an_agent_belong_to_the_surrounding_session(guard, server, tool, name):
    for turn in range(8):
        async with guard.session(name) as session:
            session.user_message(f"Is x there at {turn} o'clock?")
            await agent_of(ScriptedModel(steps=[["x"]]), guard, tool.search).run("Find x.")
    assert tool.runs == 8
    assert guard.flush(20)
    assert len(server.calls(name)) == 8


async def test_without_the_adapter_a_hard_stop_ends_the_run(guard, tool, name):
    search = guard.tool(hard_stop=True, message_as_result=True)(tool.search)
    model = ScriptedModel(steps=[["x"]] * 40)
    agent = FunctionAgent(name="finder", tools=[FunctionTool.from_defaults(search)], llm=model)
    with guard.session(name), pytest.raises(HardStop, match="search"):
        await agent.run("Find x.", max_iterations=100)
    assert (tool.runs, model.asked) == (3, 8)


class TestFailures(AdapterFailures):
    package = "llama-index-core"
    told = "the reason, as the response"
    stop = "returns the result directly, which ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(steps=steps, ids=ids)
        await agent_of(model, guard, tool.search, session).run("Find.", max_iterations=100)
        return model.asked
