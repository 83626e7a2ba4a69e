"""OpenAI Agents SDK: guards every function tool of every agent, also behind hand-offs and of agents used as tools.

Needs openai-agents. Tested with 0.24.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from agents import FunctionTool, ToolGuardrailFunctionOutput, ToolInputGuardrail, ToolOutputGuardrail
from agents.agent import AgentBase
from agents.tool_guardrails import ToolInputGuardrailData, ToolOutputGuardrailData
from agents.tracing import get_current_trace

from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session

_outer: ContextVar[tuple[Session, str] | None] = ContextVar("loopguard_outer", default=None)
"""In an agent that runs as a tool: the session of its caller, and the name of the tool."""


def guard_agents(guard: Guard) -> Callable[[], None]:
    """Guard the tools of all agents of this process, including existing ones.

    A blocked call gets the message as its output. ``stop`` raises ``ToolInputGuardrailTripwireTriggered`` out of the
    run; its ``output.output_info`` is the verdict. Hosted tools run at the provider and cannot be guarded.

    The session is the ``group_id`` of the run configuration, or else the trace: one for each run. An agent that
    runs as a tool has the session ``<session>/<tool>``.

    Parameters
    ----------
    guard
        The guard of the process.

    Returns
    -------
    callable
        Ends it.
    """
    original = AgentBase.get_all_tools
    before, after = input_guardrail(guard), output_guardrail(guard)

    async def get_all_tools(self: Any, run_context: Any) -> list[Any]:
        tools: list[Any] = await original(self, run_context)
        for tool in tools:
            if isinstance(tool, FunctionTool):
                _attach(guard, tool, before, after)
        return tools

    AgentBase.get_all_tools = get_all_tools  # type: ignore[method-assign]

    def undo() -> None:
        AgentBase.get_all_tools = original  # type: ignore[method-assign]

    return undo


def _attach(
    guard: Guard, tool: FunctionTool, before: ToolInputGuardrail[Any], after: ToolOutputGuardrail[Any]
) -> None:
    if before in (tool.tool_input_guardrails or ()):
        return
    tool.tool_input_guardrails = [*(tool.tool_input_guardrails or ()), before]
    # The first output guardrail that replaces the output is the last one that runs.
    tool.tool_output_guardrails = [*(tool.tool_output_guardrails or ()), after]
    if getattr(tool, "_is_agent_tool", False):
        _mark_inner_run(guard, tool)


def _mark_inner_run(guard: Guard, tool: FunctionTool) -> None:
    """Let the run of an agent that is a tool know the session of its caller."""
    invoke = tool.on_invoke_tool

    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        token = _outer.set((_session(guard, context), tool.name))
        try:
            return await invoke(context, arguments)
        finally:
            _outer.reset(token)

    tool.on_invoke_tool = on_invoke_tool


def input_guardrail(guard: Guard) -> ToolInputGuardrail[Any]:
    """Return the guardrail that keeps a call from running, to attach it to single tools or MCP servers."""

    async def check(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        context = data.context
        session = _session(guard, context)
        session.agent = data.agent.name or session.agent
        if _outer.get() is None:
            session.user_messages(_said(context.turn_input))
        call = Call(context.qualified_tool_name, context.tool_arguments or "{}", context.tool_call_id)
        verdict = (await session.acheck_calls([call]))[0]
        if verdict.decision == "stop":
            return ToolGuardrailFunctionOutput.raise_exception(verdict)
        if not verdict.may_run:
            return ToolGuardrailFunctionOutput.reject_content(verdict.message, verdict)
        _verdicts.set({**_verdicts.get(), context.tool_call_id: verdict})
        return ToolGuardrailFunctionOutput.allow(verdict)

    return ToolInputGuardrail(check, name="loopguard")


def output_guardrail(guard: Guard) -> ToolOutputGuardrail[Any]:
    """Return the guardrail that reports results and puts warnings in front of them; see `input_guardrail`."""

    async def report(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        context = data.context
        verdict = _verdicts.get().get(context.tool_call_id)
        _session(guard, context).result(verdict or context.tool_call_id, data.output)
        if verdict is not None and verdict.decision == "warn" and isinstance(data.output, str):
            return ToolGuardrailFunctionOutput.reject_content(verdict.with_warning(data.output), verdict)
        return ToolGuardrailFunctionOutput.allow(verdict)

    return ToolOutputGuardrail(report, name="loopguard")


_verdicts: ContextVar[dict[str, Verdict]] = ContextVar("loopguard_verdicts", default={})  # noqa: B039 (never changed)
"""Both guardrails of a call run in one task."""


def _said(items: Sequence[Any]) -> list[str]:
    """Return the texts of the user's messages in the input of a run."""
    said = [item.get("content") for item in items if isinstance(item, Mapping) and item.get("role") == "user"]
    return [text if isinstance(text, str) else json.dumps(text, default=str) for text in said]


def _session(guard: Guard, context: Any) -> Session:
    run = context.run_config
    outer = _outer.get()
    if outer is not None:
        session, tool = outer
        return guard.session(f"{session.name}/{tool}", parent=session.name)
    trace = get_current_trace()
    name = (run.group_id if run is not None else "") or (trace.trace_id if trace is not None else "")
    return guard.session(name) if name and name != "no-op" else guard.current_session()
