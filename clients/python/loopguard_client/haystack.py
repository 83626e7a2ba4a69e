"""Haystack: hooks that guard every tool of an ``Agent``.

Needs haystack-ai 3.x. Tested with 3.4.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any, Final

from haystack.components.agents.state import replace_values
from haystack.dataclasses import ChatMessage, ChatRole, ToolCall

from loopguard_client import adapter
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session

MAX_VERDICTS: Final = 1_000


def hooks(guard: Guard, *, session: str = "", agent: str = "") -> dict[str, list[Any]]:
    """Return the hooks: ``Agent(…, hooks=hooks(guard))``, with ``run`` and ``run_async``.

    A blocked call gets the message as its result; the other calls of the answer run. ``stop`` sets Haystack's
    ``stop_run``: the run ends without asking the model again, ``exit_reason`` is ``loopguard``, and the last message is
    the reason.

    Parameters
    ----------
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``.
    agent
        Name of the agent, if it is not that of the guard.
    """
    verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    def current() -> Session:
        return adapter.session_of(guard, session, agent=agent)

    return {
        "before_tool": [_Before(current, verdicts)],
        "after_tool": [_After(current, verdicts)],
    }


class _Before:
    """Asks about the calls of an answer, and leaves those that may run."""

    def __init__(self, current: Any, verdicts: OrderedDict[tuple[str, str], Verdict]) -> None:
        self._current, self._verdicts = current, verdicts

    def run(self, state: Any) -> None:
        """Ask, with one request."""
        if asked := _asked(state):
            session = self._begun(state)
            self._settle(session, state, asked, session.check_calls([_call(one) for one in asked]))

    async def run_async(self, state: Any) -> None:
        """Ask, with one request, without blocking the event loop."""
        if asked := _asked(state):
            session = self._begun(state)
            self._settle(session, state, asked, await session.acheck_calls([_call(one) for one in asked]))

    def _begun(self, state: Any) -> Session:
        session: Session = self._current()
        said = [one.text or "" for one in state.data["messages"] if one.is_from(ChatRole.USER)]
        session.user_messages(said)
        return session

    def _settle(self, session: Session, state: Any, asked: list[ToolCall], verdicts: list[Verdict]) -> None:
        stop = next((one for one in verdicts if one.decision == "stop"), None)
        runs, refused = [], []
        for call, verdict in zip(asked, verdicts, strict=True):
            if not verdict.may_run:
                refused.append((call, verdict.message))
            elif stop is not None:
                session.result(verdict, "Not run: the run was stopped.", is_error=True)
                refused.append((call, "Not run: the run was stopped."))
            else:
                runs.append(call)
                self._verdicts[session.name, _key(call)] = verdict
        while len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        if stop is not None:
            state.set("stop_run", "loopguard")
        if not refused:
            return
        # What is left in the last message is what Haystack runs.
        *before, answer = state.data["messages"]
        messages = [
            *before,
            ChatMessage.from_assistant(text=answer.text, tool_calls=[call for call, _ in refused]),
            *(ChatMessage.from_tool(text, origin=call, error=True) for call, text in refused),
        ]
        if runs:
            messages.append(ChatMessage.from_assistant(tool_calls=runs))
        state.set("messages", messages, handler_override=replace_values)


class _After:
    """Reports the results, and puts the warnings in front of them."""

    def __init__(self, current: Any, verdicts: OrderedDict[tuple[str, str], Verdict]) -> None:
        self._current, self._verdicts = current, verdicts

    def run(self, state: Any) -> None:
        """Report the results that have come last."""
        session: Session = self._current()
        messages = list(state.data["messages"])
        for place in range(len(messages) - 1, -1, -1):
            results = messages[place].tool_call_results
            if not results:
                break
            warned = [self._reported(session, one) for one in results]
            if warned != results:
                messages[place] = ChatMessage.from_tool(
                    warned[0].result, origin=warned[0].origin, error=warned[0].error
                )
        state.set("messages", messages, handler_override=replace_values)

    def _reported(self, session: Session, result: Any) -> Any:
        verdict = self._verdicts.pop((session.name, _key(result.origin)), None)
        if verdict is None:
            return result
        session.result(verdict, result.result, is_error=result.error)
        if verdict.decision == "warn" and isinstance(result.result, str):
            return replace(result, result=verdict.with_warning(result.result))
        return result


def _asked(state: Any) -> list[ToolCall]:
    messages = state.data.get("messages") or []
    return list(messages[-1].tool_calls) if messages else []


def _call(call: ToolCall) -> Call:
    return Call(call.tool_name, call.arguments, call.id or "")


def _key(call: ToolCall) -> str:
    return call.id or f"{call.tool_name}\n{sorted(call.arguments.items())}"
