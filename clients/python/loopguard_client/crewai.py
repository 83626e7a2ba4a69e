"""CrewAI: hooks that guard every tool of every crew of this process.

Needs crewai 1.x. Tested with 1.15.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from crewai.hooks import (
    register_after_tool_call_hook,
    register_before_tool_call_hook,
    unregister_after_tool_call_hook,
    unregister_before_tool_call_hook,
)

from loopguard_client import adapter, wire
from loopguard_client.calls import HardStop, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session

MAX_VERDICTS: Final = 1_000


def guard_crews(guard: Guard, *, session: str = "") -> Callable[[], None]:
    """Guard the tools of all crews of this process, including existing ones.

    A blocked call gets the message as its result. ``stop`` raises `HardStop` out of ``kickoff``. CrewAI answers
    identical calls from its cache unless a tool or agent disables it; they count all the same. Each kickoff is what a
    user asks for, and begins a new run, except in a tool of another crew.

    Parameters
    ----------
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``, else the id of the crew.

    Returns
    -------
    callable
        Ends it.
    """
    pending: OrderedDict[tuple[Any, ...], deque[tuple[str, Session, Verdict]]] = OrderedDict()
    kickoffs = _Kickoffs()
    lock = threading.Lock()

    def before(context: Any) -> bool | None:
        found = str(getattr(context.crew, "id", "") or id(context.agent))
        role = str(getattr(context.agent, "role", "") or "").strip()
        current = adapter.session_of(guard, session, found, agent=role)
        with lock:
            running = {crew for waiting in pending.values() for crew, _, _ in waiting}
        if kickoffs.is_new(found, context.crew) and running <= {found}:
            current.user_turn("\n".join(str(task.description) for task in context.crew.tasks))
        verdict = current.check(context.tool_name, _arguments(context))
        if verdict.decision == "stop":
            raise HardStop(verdict)
        with lock:
            pending.setdefault(_key(context), deque()).append((found, current, verdict))
            while len(pending) > MAX_VERDICTS:
                pending.popitem(last=False)
        return None if verdict.may_run else False

    def after(context: Any) -> str | None:
        # The hooks of a call have no id in common; identical calls have the same result here.
        with lock:
            waiting = pending.get(key := _key(context))
            _, current, verdict = waiting.popleft() if waiting else ("", None, None)
            if not waiting:
                pending.pop(key, None)
        if current is None or verdict is None:
            return None
        if not verdict.may_run:
            return verdict.message
        current.result(verdict, context.tool_result)
        return verdict.with_warning(str(context.tool_result)) if verdict.decision == "warn" else None

    register_before_tool_call_hook(before)
    register_after_tool_call_hook(after)

    def undo() -> None:
        unregister_before_tool_call_hook(before)
        unregister_after_tool_call_hook(after)

    return undo


class _Kickoffs:
    """The last kickoff of each crew."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def is_new(self, name: str, crew: Any) -> bool:
        """Return whether a call is the first one of a kickoff."""
        # CrewAI tells hooks nowhere else which kickoff this is.
        kickoff = str(getattr(crew, "_kickoff_event_id", None) or "")
        with self._lock:
            if not kickoff or self._last.get(name) == kickoff:
                return False
            self._last[name] = kickoff
            if len(self._last) > MAX_VERDICTS:
                self._last.popitem(last=False)
            return True


def _key(context: Any) -> tuple[Any, ...]:
    return id(context.agent), wire.key(context.tool_name, wire.arguments(_arguments(context)))


def _arguments(context: Any) -> dict[str, Any]:
    return context.tool_input if isinstance(context.tool_input, dict) else {"input": context.tool_input}
