"""Semantic Kernel: a filter that guards every function that the model calls.

Needs semantic-kernel 1.x. Tested with 1.45.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from semantic_kernel.contents import AuthorRole
from semantic_kernel.filters import AutoFunctionInvocationContext, FilterTypes
from semantic_kernel.functions import FunctionResult

from loopguard_client import adapter
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard


def guard_kernel(kernel: Any, guard: Guard, *, session: str = "", agent: str = "") -> Callable[[], None]:
    """Guard all functions that models call through a kernel, streamed or not; agents have one, too: ``agent.kernel``.

    A blocked call gets the message as its result. ``stop`` does, too, and sets ``terminate``: the run ends without
    asking the model again, and its last content is the reason.

    Parameters
    ----------
    kernel
        The kernel.
    guard
        The guard of the process.
    session
        Name of the session. By default that of the surrounding ``with guard.session(…)``.
    agent
        Name of the agent, if it is not that of the guard.

    Returns
    -------
    callable
        Ends it.
    """

    async def loopguard(
        context: AutoFunctionInvocationContext,
        next: Callable[[AutoFunctionInvocationContext], Awaitable[None]],  # noqa: A002 (the name that it is called by)
    ) -> None:
        current = adapter.session_of(guard, session, agent=agent)
        messages = context.chat_history.messages if context.chat_history is not None else ()
        current.user_messages([str(one.content) for one in messages if one.role == AuthorRole.USER])
        asked = context.function_call_content

        def put(value: Any) -> None:
            context.function_result = FunctionResult(function=context.function.metadata, value=value)

        def refused(verdict: Verdict) -> None:
            context.terminate = verdict.decision == "stop"
            put(verdict.message)

        def warned(verdict: Verdict, _: Any) -> None:
            value = _value(context)
            put(verdict.with_warning(value) if isinstance(value, str) else value)

        await adapter.arun(
            current,
            Call(
                (asked.name if asked is not None else "") or context.function.name,
                _arguments(asked),
                (asked.id if asked is not None else "") or "",
            ),
            lambda: next(context),
            refused,
            content=lambda _: _value(context),
            warned=warned,
        )

    kernel.add_filter(FilterTypes.AUTO_FUNCTION_INVOCATION, loopguard)
    return lambda: kernel.remove_filter(FilterTypes.AUTO_FUNCTION_INVOCATION, id(loopguard))


def _arguments(asked: Any) -> Any:
    return (asked.arguments if asked is not None else None) or {}


def _value(context: AutoFunctionInvocationContext) -> Any:
    return context.function_result.value if context.function_result is not None else None
