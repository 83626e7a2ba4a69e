"""AutoGen AgentChat: a workbench that guards the tools of another one.

Needs autogen-agentchat. Tested with 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autogen_core.tools import TextResultContent, ToolResult, Workbench

from loopguard_client import adapter
from loopguard_client.calls import Call, RunStopped, Verdict
from loopguard_client.guard import Guard


class GuardedWorkbench(Workbench):  # type: ignore[misc]
    """Guards the tools of a workbench.

    Use it as ``AssistantAgent(…, workbench=GuardedWorkbench(guard, StaticWorkbench(tools)))``.

    A blocked call gets the message as its result. ``stop`` does, too, and the run ends before the model is asked again:
    `RunStopped` is raised out of the agent, and as AutoGen's ``RuntimeError`` with the same text out of a team. An
    exception of the call itself would leave AutoGen's run without an end.

    Parameters
    ----------
    guard : Guard
        The guard of the process.
    workbench : Workbench
        The workbench that runs the calls.
    session : str
        Name of the session. By default that of the surrounding ``with guard.session(…)``. AutoGen does not show its
        tools what the user has said: call ``session.user_message`` at the beginning of each further run.
    agent : str
        Name of the agent, if it is not that of the guard.
    """

    component_type = "workbench"

    def __init__(self, guard: Guard, workbench: Workbench, *, session: str = "", agent: str = "") -> None:
        self._guard, self._inner, self._name, self._agent = guard, workbench, session, agent
        self._stop: Verdict | None = None
        self._running = 0

    async def list_tools(self) -> list[Any]:
        """Return the tools; AutoGen asks for them before each request to the model."""
        if self._stop is not None and not self._running:
            stop, self._stop = self._stop, None
            raise RunStopped(stop)
        tools: list[Any] = await self._inner.list_tools()
        return tools

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Ask, run the call if it may run, and report its result."""
        session = adapter.session_of(self._guard, self._name, agent=self._agent)
        self._running += 1
        try:
            return await adapter.arun(
                session,
                Call(name, arguments or {}, call_id or ""),
                lambda: self._inner.call_tool(name, arguments, cancellation_token, call_id),
                lambda verdict: self._refused(name, verdict),
                content=lambda result: result.to_text(),
                warned=_warned,
            )
        finally:
            self._running -= 1

    def _refused(self, name: str, verdict: Verdict) -> ToolResult:
        if verdict.decision == "stop":
            self._stop = verdict
        text = TextResultContent(content=verdict.message)
        return ToolResult(name=name, result=[text], is_error=not verdict.is_answer)

    async def start(self) -> None:
        """Start the workbench."""
        await self._inner.start()

    async def stop(self) -> None:
        """Stop the workbench."""
        await self._inner.stop()

    async def reset(self) -> None:
        """Reset the workbench."""
        self._stop = None
        await self._inner.reset()

    async def save_state(self) -> Mapping[str, Any]:
        """Return the state of the workbench."""
        state: Mapping[str, Any] = await self._inner.save_state()
        return state

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the workbench."""
        await self._inner.load_state(state)


def _warned(verdict: Verdict, result: ToolResult) -> ToolResult:
    warning = TextResultContent(content=f"{verdict.message}\n\n")
    return result.model_copy(update={"result": [warning, *result.result]})
