"""smolagents: guards every tool of an agent, and those of the agents that it manages.

Needs smolagents. Tested with 1.26.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from smolagents.memory import TaskStep

from loopguard_client import adapter, wire
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session


def guard_agent(agent: Any, guard: Guard, *, session: str = "") -> None:
    """Guard the tools of a ``ToolCallingAgent`` or ``CodeAgent`` from now on.

    A blocked call gets the message as its observation. ``stop`` interrupts the agent by its own ``interrupt()``: the
    run raises ``AgentError``, and the last observation is the reason. smolagents shows its tools no ids of calls.

    Parameters
    ----------
    agent
        The agent. One that it manages has the session ``<session>/<name>``.
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``, else one for the agent.
    """
    own = guard.session(session or wire.new_id("smolagents-"), agent=agent.name or "")
    _guard(agent, guard, own, is_named=bool(session), tells=True, stops=agent.interrupt)


def _guard(
    agent: Any, guard: Guard, own: Session, *, is_named: bool, tells: bool, stops: Callable[[], None]
) -> None:
    seen: TaskStep | None = None
    lock = threading.Lock()  # the calls of an answer run in threads

    def current() -> Session:
        nonlocal seen
        found = own if is_named else guard.surrounding_session() or own
        task = next((step for step in reversed(agent.memory.steps) if isinstance(step, TaskStep)), None)
        with lock:
            if tells and task is not None and task is not seen:
                seen = task
                found.user_turn(str(task.task))
        return found

    def refused(verdict: Verdict) -> str:
        if verdict.decision == "stop":
            agent.interrupt()
            stops()
        return verdict.message

    def guarded(name: str, forward: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            call = Call(name, {**dict(zip(names, args, strict=False)), **kwargs})
            return adapter.run(current(), call, lambda: forward(*args, **kwargs), refused)

        return run

    for name, tool in agent.tools.items():
        if name != "final_answer":
            tool.forward = guarded(name, tool.forward, list(tool.inputs))
    for name, inner in agent.managed_agents.items():
        below = guard.session(f"{own.name}/{name}", agent=name, parent=own.name)
        _guard(inner, guard, below, is_named=True, tells=False, stops=stops)
