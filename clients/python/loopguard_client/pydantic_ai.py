"""pydantic-ai: a capability that guards every tool of an agent.

Needs pydantic-ai 2.x. Tested with 2.68.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext, ToolDefinition
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.messages import ToolCallPart

from loopguard_client.calls import Call, RunStopped
from loopguard_client.guard import Guard


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
        name = self.session or ctx.conversation_id or ctx.run_id or ""
        agent = self.agent or getattr(ctx.agent, "name", None) or ""
        session = self.guard.session(name, agent=agent) if name else self.guard.current_session()
        verdict = (
            await session.acheck_calls([Call(call.tool_name, call.args_as_dict(), call.tool_call_id)])
        )[0]
        if verdict.decision == "stop":
            raise RunStopped(verdict)
        if not verdict.may_run:
            return verdict.message  # not ModelRetry: the second one would end the run
        try:
            result = await handler(args)
        except Exception as error:
            session.result(verdict, f"{type(error).__name__}: {error}", is_error=True)
            raise
        session.result(verdict, result)
        return verdict.with_warning(result) if isinstance(result, str) else result
