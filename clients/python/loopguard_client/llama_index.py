"""LlamaIndex: guards the tools of agent workflows.

Needs llama-index-core. Tested with 0.14.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

from llama_index.core.tools import FunctionTool, ToolMetadata, ToolOutput

from loopguard_client import adapter
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard

_is_stopped: ContextVar[bool] = ContextVar("loopguard_is_stopped", default=False)
"""Whether the call that this task has just made was stopped."""


class _GuardedMetadata(ToolMetadata):  # type: ignore[misc]
    """Says of a tool whose call was stopped that its result is the answer of the run."""

    @property
    def return_direct(self) -> bool:
        return self._is_direct or _is_stopped.get()

    @return_direct.setter
    def return_direct(self, value: bool) -> None:
        self._is_direct = value


def guard_tools(
    guard: Guard, tools: Iterable[Any], *, session: str = "", agent: str = ""
) -> list[FunctionTool]:
    """Return guarded tools: ``FunctionAgent(tools=guard_tools(guard, [search]))``, also for ``AgentWorkflow``.

    A blocked call gets the message as its result. The result of a stopped call is returned directly, as that of a tool
    with ``return_direct`` is: the run ends without asking the model again, and its response is the reason. LlamaIndex
    shows its tools no ids of calls and not what the user has said: call ``session.user_message`` at the beginning of
    each further run.

    Parameters
    ----------
    guard
        The guard of the process.
    tools
        Functions, and tools as ``FunctionTool``; the latter are changed.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``.
    agent
        Name of the agent, if it is not that of the guard.
    """
    made = [one if isinstance(one, FunctionTool) else FunctionTool.from_defaults(one) for one in tools]
    for tool in made:
        _guard(guard, tool, session, agent)
    return made


def _guard(guard: Guard, tool: FunctionTool, session: str, agent: str) -> None:
    known = tool.metadata
    tool._metadata = _GuardedMetadata(**{one.name: getattr(known, one.name) for one in fields(ToolMetadata)})
    acall = tool.acall

    async def guarded(*args: Any, **kwargs: Any) -> ToolOutput:
        _is_stopped.set(False)
        arguments = {name: value for name, value in kwargs.items() if name != tool.ctx_param_name}
        name = tool.metadata.get_name()

        def refused(verdict: Verdict) -> ToolOutput:
            _is_stopped.set(verdict.decision == "stop")
            return _output(name, kwargs, verdict.message)

        return await adapter.arun(
            adapter.session_of(guard, session, agent=agent),
            Call(name, arguments or {"input": args[0]} if args else arguments),
            lambda: acall(*args, **kwargs),
            refused,
            content=lambda output: output.content,
            warned=lambda verdict, output: _output(name, kwargs, verdict.with_warning(output.content)),
        )

    tool.acall = guarded


def _output(name: str, arguments: Any, text: str) -> ToolOutput:
    return ToolOutput(content=text, tool_name=name, raw_input=arguments, raw_output=text)
