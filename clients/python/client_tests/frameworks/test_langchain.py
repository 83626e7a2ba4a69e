"""LangChain's `create_agent` and LangGraph's `ToolNode`, with a scripted model."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip(
    "langchain", reason="langchain is not installed: python3 manage.py test clients --install"
)

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from loopguard_client.langchain import GraphRunStopped, LoopGuardMiddleware, tool_node_wrappers

from .failures import AdapterFailures, call_id
from .snippets import of_connect

MODEL_CALLS = 10


class ScriptedModel(GenericFakeChatModel):
    """Makes the same calls in each of its first answers, then says that it is done."""

    asked: int = 0

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        return self

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        self.asked += 1
        return super()._generate(*arguments, **named)


def scripted(parallel: int) -> ScriptedModel:
    return model_of([["x"] * parallel] * MODEL_CALLS)


def model_of(steps: list[list[str]], ids: str = "unique") -> ScriptedModel:
    answers = [
        AIMessage(
            "",
            tool_calls=[
                {"name": "search", "args": {"q": q}, "id": call_id(ids, answer, at), "type": "tool_call"}
                for at, q in enumerate(queries)
            ],
        )
        for answer, queries in enumerate(steps)
    ]
    return ScriptedModel(messages=iter([*answers, AIMessage("done")]))


async def play(agent: Any, way: str, configuration: dict[str, Any]) -> list[Any]:
    """Run an agent in one of four ways and return its messages."""
    question = {"messages": [HumanMessage("Find x.")]}
    if way == "invoke":
        return agent.invoke(question, configuration)["messages"]
    if way == "ainvoke":
        return (await agent.ainvoke(question, configuration))["messages"]
    if way == "stream":
        *_, last = agent.stream(question, configuration, stream_mode="values")
    else:
        *_, last = [state async for state in agent.astream(question, configuration, stream_mode="values")]
    return last["messages"]


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_three_of_ten_identical_calls_run_and_the_eighth_ends_the_run(guard, server, tool, name, way):
    model = scripted(1)
    agent = create_agent(
        model, [langchain_tool(tool.search)], middleware=[LoopGuardMiddleware(guard, agent="finder")]
    )
    messages = await play(agent, way, {"configurable": {"thread_id": name}})
    assert tool.runs == 3
    assert model.asked == 8
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    assert [answer.status for answer in answers] == ["success"] * 3 + ["error"] * 5
    assert answers[0].content == "0 hits"
    assert answers[2].content.endswith("\n\n0 hits")
    assert "search" in messages[-1].content
    assert guard.flush(20)
    calls = server.calls(name)
    assert [call["decision"] for call in calls] == ["allow", "allow", "warn"] + ["block"] * 4 + ["stop"]
    assert {call["agent"] for call in calls} == {"finder"}
    assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_three_of_six_parallel_calls_run(guard, tool, name, way):
    model = scripted(6)
    agent = create_agent(model, [langchain_tool(tool.search)], middleware=[LoopGuardMiddleware(guard)])
    messages = await play(agent, way, {"configurable": {"thread_id": name}})
    assert tool.runs == 3
    assert model.asked < MODEL_CALLS
    asked = [
        call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls
    ]
    answered = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert sorted(asked) == sorted(answered)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_call_that_the_user_asks_for_in_each_turn_runs_in_each_turn(guard, server, tool, name, way):
    answers = [
        AIMessage(
            "", tool_calls=[{"name": "search", "args": {"q": "x"}, "id": f"c{turn}", "type": "tool_call"}]
        )
        for turn in range(8)
    ]
    steps = [step for answer in answers for step in (answer, AIMessage("Nothing yet."))]
    agent = create_agent(
        ScriptedModel(messages=iter(steps)),
        [langchain_tool(tool.search)],
        middleware=[LoopGuardMiddleware(guard)],
        checkpointer=InMemorySaver(),
    )
    configuration = {"configurable": {"thread_id": name}}
    for turn in range(8):
        question = {"messages": [HumanMessage(f"Is x there now, at {turn} o'clock?")]}
        if way == "invoke":
            agent.invoke(question, configuration)
        else:
            await agent.ainvoke(question, configuration)
    assert tool.runs == 8
    assert guard.flush(20)
    assert {call["decision"] for call in server.calls(name)} <= {"allow", "warn"}


@pytest.mark.parametrize("inner", [{}, {"configurable": {"thread_id": "inner"}}])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_sub_agent_is_a_session_below_its_caller_and_brings_it_nothing_new(
    guard, server, tool, name, way, inner
):
    asked: list[int] = []

    def research(q: str) -> str:
        """Let a sub-agent search."""
        model = model_of([["x"]] * 40)
        agent = create_agent(model, [langchain_tool(tool.search)], middleware=[LoopGuardMiddleware(guard)])
        messages = agent.invoke({"messages": [HumanMessage(q)]}, inner)["messages"]
        asked.append(model.asked)
        return str(messages[-1].content)

    calls = [{"name": "research", "args": {"q": "x"}, "id": f"r{n}", "type": "tool_call"} for n in range(40)]
    model = ScriptedModel(messages=iter([AIMessage("", tool_calls=[call]) for call in calls]))
    agent = create_agent(model, [langchain_tool(research)], middleware=[LoopGuardMiddleware(guard)])
    await play(agent, way, {"configurable": {"thread_id": name}})
    assert (tool.runs, len(asked), model.asked) == (3, 3, 8)
    assert asked[0] == 8
    assert guard.flush(20)
    assert len(server.calls(f"{name}/research")) == sum(asked)


async def test_a_run_without_a_thread_is_a_session_of_its_own(guard, tool):
    for _ in range(2):
        tool.runs = 0
        agent = create_agent(
            scripted(1), [langchain_tool(tool.search)], middleware=[LoopGuardMiddleware(guard)]
        )
        await play(agent, "ainvoke", {})
        assert tool.runs == 3


def graph(model: ScriptedModel, node: ToolNode) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("handles_errors", [True, False])
@pytest.mark.parametrize("parallel", [1, 6])
async def test_a_tool_node_runs_three_calls_and_raises_at_the_eighth(
    guard, server, tool, name, way, handles_errors, parallel
):
    model = scripted(parallel)
    node = ToolNode(
        [langchain_tool(tool.search)],
        handle_tool_errors=handles_errors,
        **tool_node_wrappers(guard, session=name),
    )
    with pytest.raises(GraphRunStopped, match="search"):
        await play(graph(model, node), way, {})
    assert tool.runs == 3
    assert guard.flush(20)
    if parallel == 1:
        assert model.asked == 8
        assert len(server.calls(name)) == 8


async def test_an_error_of_the_tool_is_its_result(guard, server, name):
    def broken(q: str) -> str:
        """Fail."""
        raise KeyError(q)

    node = ToolNode(
        [langchain_tool(broken)], handle_tool_errors=True, **tool_node_wrappers(guard, session=name)
    )
    call = {"name": "broken", "args": {"q": "x"}, "id": "call_0", "type": "tool_call"}
    model = ScriptedModel(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
    messages = await play(graph(model, node), "ainvoke", {})
    assert messages[-1].content == "done"
    assert guard.flush(20)
    assert server.calls(name)[0]["result"]["is_error"] is True


class TestMiddlewareFailures(AdapterFailures):
    package = "langchain"
    told = "the reason, as the last message"
    stop = "ends the run"

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = model_of(steps, ids)
        agent = create_agent(model, [langchain_tool(tool.search)], middleware=[LoopGuardMiddleware(guard)])
        await play(agent, "ainvoke", {"configurable": {"thread_id": session}, "recursion_limit": 1_000})
        return model.asked


class TestToolNodeFailures(AdapterFailures):
    package = "langgraph"
    told = "`GraphRunStopped` with the reason"
    stop = "raises out of the graph"

    async def play(self, guard, tool, session, steps, ids="unique"):
        node = ToolNode([langchain_tool(tool.search)], **tool_node_wrappers(guard, session=session))
        model = model_of(steps, ids)
        with contextlib.suppress(GraphRunStopped):
            await play(graph(model, node), "ainvoke", {"recursion_limit": 1_000})
        return model.asked


def test_the_snippet_of_connect_runs_as_it_is_pasted(server, tool, monkeypatch):
    monkeypatch.setenv("LOOPGUARD_URL", server.url)
    monkeypatch.setenv("LOOPGUARD_KEY", server.key)
    model = scripted(1)
    names: dict[str, Any] = {
        "create_agent": create_agent,
        "model": model,
        "tools": [langchain_tool(tool.search)],
    }
    # The machine may be busy.
    exec(of_connect("langchain").replace("Guard(agent=", "Guard(budget_seconds=20, agent="), names)
    answer = names["agent"].invoke({"messages": [HumanMessage("Find x.")]})
    assert (tool.runs, model.asked) == (3, 8)
    assert "search" in answer["messages"][-1].content
    assert names["guard"].status.unguarded_calls == 0
    assert names["guard"].close(20)
