"""Microsoft Agent Framework: middleware that guards every tool of an agent.

Needs agent-framework-core 1.x. Tested with 1.23.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from agent_framework import (
    AgentContext,
    AgentMiddleware,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    MiddlewareTermination,
)

from loopguard_client import adapter
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session

_is_in_tool: ContextVar[bool] = ContextVar("loopguard_is_in_tool", default=False)
"""Whether what an agent is told comes from the tool of another agent, and not from a person."""


def middleware(
    guard: Guard, *, session: str = "", agent: str = ""
) -> list[AgentMiddleware | FunctionMiddleware]:
    """Return the middleware: ``Agent(…, middleware=middleware(guard))``, streamed or not.

    A blocked call gets the message as its result. ``stop`` raises the framework's `MiddlewareTermination`, which ends
    the run without asking the model again; the result of the last call is the reason.

    Parameters
    ----------
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``, else the id of the agent's
        session.
    agent
        Name of the agent, if it is not that of the guard.
    """

    def session_of(framework_session: Any) -> Session:
        found = str(getattr(framework_session, "session_id", "") or "")
        return adapter.session_of(guard, session, found, agent=agent)

    class Turns(AgentMiddleware):  # type: ignore[misc]
        async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
            if not _is_in_tool.get():
                said = [str(one.text) for one in context.messages if str(one.role) == "user"]
                if said:
                    session_of(context.session).user_turn("\n".join(said))
            await call_next()

    class Calls(FunctionMiddleware):  # type: ignore[misc]
        async def process(
            self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
        ) -> None:
            async def run() -> None:
                token = _is_in_tool.set(True)
                try:
                    await call_next()
                finally:
                    _is_in_tool.reset(token)

            def refused(verdict: Verdict) -> None:
                context.result = verdict.message
                if verdict.decision == "stop":
                    raise MiddlewareTermination(verdict.message)

            def warned(verdict: Verdict, _: Any) -> None:
                warning = Content.from_text(verdict.message)
                if isinstance(context.result, str):
                    context.result = verdict.with_warning(context.result)
                elif isinstance(context.result, list):
                    context.result = [warning, *context.result]

            arguments: Any = context.arguments
            await adapter.arun(
                session_of(context.session),
                Call(
                    context.function.name,
                    arguments if isinstance(arguments, dict) else arguments.model_dump(),
                    str(context.metadata.get("call_id") or ""),
                ),
                run,
                refused,
                content=lambda _: _said(context.result),
                warned=warned,
            )

    return [Turns(), Calls()]


def _said(result: Any) -> Any:
    """Return the texts of a result; other contents have ids that are new each time."""
    if not isinstance(result, list):
        return result
    said = [one.text if getattr(one, "type", "") == "text" else str(one) for one in result]
    return said[0] if len(said) == 1 else said
