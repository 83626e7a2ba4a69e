"""What the adapters for agent frameworks share: the session of a run, and one call from its verdict to its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session


def session_of(guard: Guard, name: str = "", found: str = "", *, agent: str = "") -> Session:
    """Return the session of a run: of the given name, else the surrounding one, else that which the framework names."""
    current = guard.surrounding_session()
    if not name and current is not None:
        return current
    name = name or found
    return guard.session(name, agent=agent) if name else guard.current_session()


def _same(result: Any) -> Any:
    return result


def _warned(verdict: Verdict, result: Any) -> Any:
    return verdict.with_warning(result) if isinstance(result, str) else result


def run(
    session: Session,
    call: Call,
    function: Callable[[], Any],
    refused: Callable[[Verdict], Any],
    *,
    content: Callable[[Any], Any] = _same,
    warned: Callable[[Verdict, Any], Any] = _warned,
) -> Any:
    """Ask about a call, run it if it may run, and report its result.

    Parameters
    ----------
    session, call
        What is asked about.
    function
        Runs the call.
    refused
        Returns what stands in place of the result of a call that must not run, or raises what ends the run.
    content
        Returns the text of a result.
    warned
        Returns a result with the warning of its verdict.
    """
    verdict = session.check_calls([call])[0]
    if not verdict.may_run:
        return refused(verdict)
    try:
        result = function()
    except Exception as error:
        session.result(verdict, _said(error), is_error=True)
        raise
    return _reported(session, verdict, result, content, warned)


async def arun(
    session: Session,
    call: Call,
    function: Callable[[], Awaitable[Any]],
    refused: Callable[[Verdict], Any],
    *,
    content: Callable[[Any], Any] = _same,
    warned: Callable[[Verdict, Any], Any] = _warned,
) -> Any:
    """Do what `run` does without blocking the event loop."""
    verdict = (await session.acheck_calls([call]))[0]
    if not verdict.may_run:
        return refused(verdict)
    try:
        result = await function()
    except Exception as error:
        session.result(verdict, _said(error), is_error=True)
        raise
    return _reported(session, verdict, result, content, warned)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _reported(
    session: Session,
    verdict: Verdict,
    result: Any,
    content: Callable[[Any], Any],
    warned: Callable[[Verdict, Any], Any],
) -> Any:
    session.result(verdict, content(result))
    return warned(verdict, result) if verdict.decision == "warn" and verdict.message else result
