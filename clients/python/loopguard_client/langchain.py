"""LangChain agents: `LoopGuardMiddleware` for ``create_agent``, `tool_node_wrappers` for LangGraph's ``ToolNode``.

Needs langchain 1.x, or langgraph alone for the wrappers. Tested with langchain 1.4 and langgraph 1.2. The calls name no
round, so identical calls of one model response are counted one by one.

An agent that runs inside a tool is a sub-agent: its session is ``<session>/<tool>`` below that of the caller, whatever
its thread. What its caller says to it is no message of a person, and when it is stopped, it always says the same, so
that its caller sees that nothing new comes of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp

from loopguard_client.calls import Call, RunStopped, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

MAX_VERDICTS: Final = 1_000
SUB_AGENT_STOPPED: Final = (
    "LoopGuard stopped this sub-agent because it repeats itself or has reached a limit."
    " Calling it again will not help."
)
_outer: ContextVar[tuple[Session, str] | None] = ContextVar("loopguard_outer", default=None)
"""In a tool: the session of its caller, and the name of the tool."""


class GraphRunStopped(RunStopped, GraphBubbleUp):
    """The run must end. Error handling of a ``ToolNode`` does not turn it into a message."""


try:
    from langchain.agents.middleware import AgentMiddleware, hook_config
except ImportError:  # LangGraph without LangChain
    pass
else:

    class LoopGuardMiddleware(AgentMiddleware):  # type: ignore[type-arg]
        """Guards every tool call of an agent, with one request per model response.

        A blocked call is answered with its message; the other calls of the response run. ``stop`` ends the run with the
        message as the last one. Works with ``invoke``, ``ainvoke`` and their streams.

        Parameters
        ----------
        guard : Guard
            The guard of the process.
        session : str
            Name of the session. By default the ``thread_id`` of the configuration, or a new session for each run. A
            sub-agent has one below that of its caller.
        agent : str
            Name of the agent, if it is not that of the guard.
        """

        def __init__(self, guard: Guard, *, session: str = "", agent: str = "") -> None:
            super().__init__()
            self._guard, self._session, self._agent = guard, session, agent
            self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Report what the user has said to start this run."""
            if _outer.get() is None:
                self._session_of(state).user_messages(_said(state))
            return None

        async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Report what the user has said to start this run."""
            return self.before_agent(state, runtime)

        @hook_config(can_jump_to=["end"])
        def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Ask for the calls of a model response."""
            session, response = self._asked(state)
            if response is None:
                return None
            calls = _calls(response)
            return self._answer(session, response, session.check_calls(calls))

        @hook_config(can_jump_to=["end"])
        async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Ask for the calls of a model response."""
            session, response = self._asked(state)
            if response is None:
                return None
            verdicts = await session.acheck_calls(_calls(response))
            return self._answer(session, response, verdicts)

        def wrap_tool_call(
            self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
        ) -> ToolMessage | Command[Any]:
            """Run a call, report its result, and put a warning in front of it."""
            session = self._session_of(request.state)
            verdict = self._verdicts.pop((session.name, _id(request)), None)
            return _run(session, request, handler, verdict)

        async def awrap_tool_call(
            self,
            request: ToolCallRequest,
            handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
        ) -> ToolMessage | Command[Any]:
            """Run a call, report its result, and put a warning in front of it."""
            session = self._session_of(request.state)
            verdict = self._verdicts.pop((session.name, _id(request)), None)
            return await _arun(session, request, handler, verdict)

        def _session_of(self, state: Any) -> Session:
            return _session(self._guard, state, self._session, self._agent)

        def _asked(self, state: Any) -> tuple[Session, AIMessage | None]:
            last = _messages(state)[-1:]
            response = last[0] if last and isinstance(last[0], AIMessage) and last[0].tool_calls else None
            return self._session_of(state), response

        def _answer(
            self, session: Session, response: AIMessage, verdicts: list[Verdict]
        ) -> dict[str, Any] | None:
            stop = next((verdict for verdict in verdicts if verdict.decision == "stop"), None)
            messages: list[BaseMessage] = []
            for call, verdict in zip(response.tool_calls, verdicts, strict=True):
                if verdict.may_run and stop is not None:
                    session.result(verdict, "Not run: the run was stopped.", is_error=True)
                    messages.append(_refusal(call, "Not run: the run was stopped."))
                elif not verdict.may_run:
                    messages.append(_refusal(call, verdict.message, is_answer=verdict.is_answer))
                else:
                    self._verdicts[session.name, str(call["id"])] = verdict
            while len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
            if stop is not None:
                text = stop.message if _outer.get() is None else SUB_AGENT_STOPPED
                return {"messages": [*messages, AIMessage(text)], "jump_to": "end"}
            return {"messages": messages} if messages else None


def tool_node_wrappers(guard: Guard, *, session: str = "", agent: str = "") -> dict[str, Any]:
    """Return the two wrappers of a LangGraph ``ToolNode``: ``ToolNode(tools, **tool_node_wrappers(guard))``.

    A blocked call is answered with its message. ``stop`` raises `GraphRunStopped` out of the graph.

    Parameters
    ----------
    guard
        The guard of the process.
    session
        Name of the session. By default the ``thread_id`` of the configuration, or a new session for each run.
    agent
        Name of the agent, if it is not that of the guard.
    """

    def wrap(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        return _run(_session(guard, request.state, session, agent), request, handler, None, raises=True)

    async def awrap(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        return await _arun(
            _session(guard, request.state, session, agent), request, handler, None, raises=True
        )

    return {"wrap_tool_call": wrap, "awrap_tool_call": awrap}


def _run(
    session: Session,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], Any],
    verdict: Verdict | None,
    *,
    raises: bool = False,
) -> Any:
    if verdict is None:  # of a tool node, or of a run that another process began
        verdict = session.check_calls([_call(request.tool_call)])[0]
    if not verdict.may_run:
        return _refused(request, verdict, raises=raises)
    try:
        with _inside(session, request):
            result = handler(request)
        return _reported(session, verdict, result)
    except Exception as error:
        session.result(verdict, f"{type(error).__name__}: {error}", is_error=True)
        raise


async def _arun(
    session: Session,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], Awaitable[Any]],
    verdict: Verdict | None,
    *,
    raises: bool = False,
) -> Any:
    if verdict is None:
        verdict = (await session.acheck_calls([_call(request.tool_call)]))[0]
    if not verdict.may_run:
        return _refused(request, verdict, raises=raises)
    try:
        with _inside(session, request):
            result = await handler(request)
        return _reported(session, verdict, result)
    except Exception as error:
        session.result(verdict, f"{type(error).__name__}: {error}", is_error=True)
        raise


@contextmanager
def _inside(session: Session, request: ToolCallRequest) -> Iterator[None]:
    """Let an agent that runs in the tool know the session of its caller."""
    token = _outer.set((session, request.tool_call["name"]))
    try:
        yield
    finally:
        _outer.reset(token)


def _refused(request: ToolCallRequest, verdict: Verdict, *, raises: bool) -> ToolMessage:
    if raises and verdict.decision == "stop":
        raise GraphRunStopped(verdict)
    return _refusal(request.tool_call, verdict.message, is_answer=verdict.is_answer)


def _refusal(call: Mapping[str, Any], text: str, *, is_answer: bool = False) -> ToolMessage:
    status: Literal["success", "error"] = "success" if is_answer else "error"
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)


def _reported(session: Session, verdict: Verdict, result: Any) -> Any:
    if not isinstance(result, ToolMessage):  # a Command
        session.result(verdict, str(result))
        return result
    session.result(verdict, result.content, is_error=result.status == "error")
    if verdict.decision != "warn" or not verdict.message:
        return result
    content: Any = result.content
    content = (
        verdict.with_warning(content)
        if isinstance(content, str)
        else [{"type": "text", "text": verdict.message}, *content]
    )
    return result.model_copy(update={"content": content})


def _calls(response: AIMessage) -> list[Call]:
    return [_call(call) for call in response.tool_calls]


def _call(call: Mapping[str, Any]) -> Call:
    return Call(call["name"], call["args"], str(call["id"] or ""))


def _id(request: ToolCallRequest) -> str:
    return str(request.tool_call["id"])


def _messages(state: Any) -> Sequence[BaseMessage]:
    if isinstance(state, Sequence) and not isinstance(state, str):
        return state
    found = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return found or []


def _said(state: Any) -> list[str]:
    return [str(message.text) for message in _messages(state) if isinstance(message, HumanMessage)]


def _session(guard: Guard, state: Any, name: str, agent: str) -> Session:
    """Return the session of a run: below that of its caller, by name, by thread, or by the first message's id."""
    outer = _outer.get()
    if outer is not None:
        above, tool = outer
        return guard.session(name or f"{above.name}/{tool}", agent=agent, parent=above.name)
    if not name:
        try:
            configurable = get_config().get("configurable") or {}
        except RuntimeError:  # outside of a run
            configurable = {}
        first = next((message.id for message in _messages(state) if message.id), "")
        name = str(configurable.get("thread_id") or first or "")
    return guard.session(name, agent=agent) if name else guard.current_session()
