"""AG2: a middleware that guards every tool of an agent.

Needs ag2 1.x. Tested with 1.2.
"""

from __future__ import annotations

from typing import Any

from ag2.events import ModelRequest, ToolCallEvent, ToolErrorEvent, ToolResult, ToolResultEvent
from ag2.middleware import BaseMiddleware, Middleware

from loopguard_client import adapter
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard


def middleware(guard: Guard, *, session: str = "", agent: str = "") -> Middleware:
    """Return the middleware: ``Agent(…, middleware=[middleware(guard)])``.

    A blocked call gets the message as its result. ``stop`` returns a final result: the run ends without asking the
    model again, and its answer is the reason.

    Parameters
    ----------
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``, else the id of the stream.
    agent
        Name of the agent, if it is not that of the guard.
    """
    return Middleware(_LoopGuard, guard=guard, session=session, agent=agent)


class _LoopGuard(BaseMiddleware):  # type: ignore[misc]
    def __init__(self, event: Any, context: Any, *, guard: Guard, session: str, agent: str) -> None:
        super().__init__(event, context)
        self._session = adapter.session_of(guard, session, str(context.stream.id), agent=agent)

    async def on_turn(self, call_next: Any, event: Any, context: Any) -> Any:
        """Report what the user has said to start this turn."""
        if isinstance(event, ModelRequest):
            self._session.user_turn("\n".join(str(getattr(part, "content", part)) for part in event.parts))
        return await call_next(event, context)

    async def on_tool_execution(self, call_next: Any, event: ToolCallEvent, context: Any) -> Any:
        """Ask, run the call if it may run, and report its result."""

        def refused(verdict: Verdict) -> ToolResultEvent:
            result = ToolResult(verdict.message, final=verdict.decision == "stop")
            return ToolResultEvent.from_call(event, result)

        return await adapter.arun(
            self._session,
            Call(event.name, event.arguments or "{}", event.id),
            lambda: call_next(event, context),
            refused,
            content=_content,
            warned=lambda verdict, done: _warned(event, verdict, done),
        )


def _content(done: Any) -> Any:
    """Return what a tool has said; its ids, which are new each time, are no part of it."""
    if isinstance(done, ToolErrorEvent):
        return f"{type(done.error).__name__}: {done.error}"
    parts = done.result.parts if isinstance(done, ToolResultEvent) else [done]
    said = [getattr(part, "content", part) for part in parts]
    return said[0] if len(said) == 1 else said


def _warned(event: ToolCallEvent, verdict: Verdict, done: Any) -> Any:
    if not isinstance(done, ToolResultEvent) or isinstance(done, ToolErrorEvent) or done.result.final:
        return done
    return ToolResultEvent.from_call(event, ToolResult(verdict.message, *done.result.parts))
