"""Agno: a hook that guards every tool of an agent or a team.

Needs agno 3.x. Tested with 3.1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agno.exceptions import StopAgentRun

from loopguard_client import adapter
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard


def tool_hook(guard: Guard, *, session: str = "") -> Callable[..., Any]:
    """Return the hook: ``Agent(…, tool_hooks=[tool_hook(guard)])``, with ``run`` and ``arun``, streamed or not.

    A blocked call gets the message as its result. ``stop`` raises Agno's `StopAgentRun`, which ends the run; its last
    message is the reason. Agno shows its hooks no ids of calls.

    Parameters
    ----------
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``, else Agno's ``session_id``.
    """

    def loopguard(
        run_context: Any, agent: Any, function_name: str, function_call: Any, arguments: Mapping[str, Any]
    ) -> Any:
        found = str(getattr(run_context, "session_id", "") or "")
        current = adapter.session_of(guard, session, found, agent=str(getattr(agent, "name", "") or ""))
        messages = getattr(run_context, "messages", None) or ()
        current.user_messages([str(one.content) for one in messages if one.role == "user"])
        call = Call(function_name, arguments)
        if inspect.iscoroutinefunction(function_call):  # the caller awaits what comes back
            return adapter.arun(current, call, lambda: function_call(**arguments), _refused)
        return adapter.run(current, call, lambda: function_call(**arguments), _refused)

    return loopguard


def _refused(verdict: Verdict) -> str:
    if verdict.decision == "stop":
        raise StopAgentRun(verdict.message, agent_message=verdict.message)
    return verdict.message
