"""pydantic-ai: a capability that guards every tool of an agent.

Needs pydantic-ai 2.x. Tested with 2.68.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext, ToolDefinition
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.messages import ModelRequest, ToolCallPart, UserPromptPart

from loopguard_client.calls import Call, RunStopped
from loopguard_client.guard import Guard
from loopguard_client.session import Session

_is_in_tool: ContextVar[bool] = ContextVar("loopguard_is_in_tool", default=False)
"""Whether the prompt of a run comes from the tool of another agent, and not from a person."""


@dataclass
class LoopGuard(AbstractCapability[Any]):
    """Guards every tool call: ``Agent(…, capabilities=[LoopGuard(guard)])``, or ``agent.run(…)`` with it for one run.

    A blocked call gets the message as its result. ``stop`` raises `RunStopped` out of the run.

    Attributes
    ----------
    guard : Guard
        The guard of the process.
    session : str
        Name of the session; by default the ``conversation_id`` of the run.
    agent : str
        Name of the agent, if it is not that of the guard or of the agent itself.
    """

    guard: Guard
    session: str = ""
    agent: str = ""

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Report what the user has said to start this run."""
        if _is_in_tool.get():
            return
        earlier = [
            _text(part.content)
            for message in ctx.messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]
        prompt = _text(ctx.prompt) if ctx.prompt is not None else ""
        if prompt and earlier[-1:] != [prompt]:
            earlier.append(prompt)
        if prompt:
            self._session_of(ctx).user_messages(earlier)

    def _session_of(self, ctx: RunContext[Any]) -> Session:
        name = self.session or ctx.conversation_id or ctx.run_id or ""
        agent = self.agent or getattr(ctx.agent, "name", None) or ""
        return self.guard.session(name, agent=agent) if name else self.guard.current_session()

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Ask, run the call if it may run, and report its result."""
        session = self._session_of(ctx)
        verdict = (
            await session.acheck_calls([Call(call.tool_name, call.args_as_dict(), call.tool_call_id)])
        )[0]
        if verdict.decision == "stop":
            raise RunStopped(verdict)
        if not verdict.may_run:
            return verdict.message  # not ModelRetry: the second one would end the run
        token = _is_in_tool.set(True)
        try:
            result = await handler(args)
        except Exception as error:
            session.result(verdict, f"{type(error).__name__}: {error}", is_error=True)
            raise
        finally:
            _is_in_tool.reset(token)
        session.result(verdict, result)
        return verdict.with_warning(result) if isinstance(result, str) else result


def _text(content: Any) -> str:
    """Return the text of a prompt, whose other parts are pictures and files."""
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else type(part).__name__ for part in content)
