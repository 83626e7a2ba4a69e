"""``loopguard acp -- AGENT``: runs an agent of the Agent Client Protocol on stdio and guards its tool calls.

The agent asks for permission before a call, or reports it. A request for permission waits for the verdict: a call that
must not run is refused with the option that the agent offers, and a stop cancels the turn. Calls of which the agent
only tells are checked as well, and can only be stopped.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import Session
from loopguard_client.stdio import StdioProxy, run_on_stdio, to_line

logger = logging.getLogger("loopguard_client")

MAX_SESSIONS: Final = 256
MAX_CALLS: Final = 1_000
"""Calls of a session without a result. Judgements: an editor has a few sessions, and a turn a few open calls."""
MAX_REQUESTS: Final = 256
"""Requests of the client without an answer that are remembered."""
MARGIN_SECONDS: Final = 5.0
"""Beyond the time of a check, for a busy machine."""
_READ: Final = (b"session/", b"initialize")
_STARTED: Final = ("in_progress", "completed", "failed")
_REJECTS: Final = ("reject_once", "reject_always")

Value = TypeVar("Value")


@dataclass(slots=True)
class _ToolCall:
    """A call that the agent has told of, and its verdict once that is asked for."""

    about: dict[str, Any] = field(default_factory=dict)
    verdict: Future[Verdict] | None = None
    is_refused: bool = False


@dataclass(slots=True)
class _AgentSession:
    """A session of the agent.

    Attributes
    ----------
    name, session
        Its name for the agent, and the same session on the server.
    is_cancelled
        Whether its turn is cancelled: requests for permission are refused until the next prompt.
    """

    name: str
    session: Session
    cwd: str = ""
    calls: OrderedDict[str, _ToolCall] = field(default_factory=OrderedDict)
    is_cancelled: bool = False


class AcpProxy(StdioProxy):
    """One agent behind its client; its sessions keep their names.

    Parameters
    ----------
    guard : Guard
        The guard of the process.
    command : sequence of str
        The agent and its arguments.
    """

    def __init__(self, guard: Guard, command: Sequence[str]) -> None:
        super().__init__(guard, command)
        self._sessions: OrderedDict[str, _AgentSession] = OrderedDict()
        self._requests: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Requests of the client whose answers are read: their methods, and the folders of new sessions."""

    # From the client

    def from_client(self, line: bytes) -> None:
        """Note prompts, new sessions and cancelled turns; everything passes."""
        for message in _messages(line):
            method, parameters = message.get("method"), _mapping(message.get("params"))
            name = str(parameters.get("sessionId", ""))
            with self.lock:
                if method in ("initialize", "session/new", "session/load", "session/resume"):
                    cwd = str(parameters.get("cwd", ""))
                    _keep(self._requests, json.dumps(message.get("id")), (str(method), cwd), MAX_REQUESTS)
                    if name:
                        self._known(name).cwd = cwd
                elif method == "session/prompt" and name:
                    one = self._known(name)
                    one.is_cancelled = False
                    one.session.user_message(_text(parameters.get("prompt")))
                elif method == "session/cancel" and name:
                    self._known(name).is_cancelled = True
        self.write_to_program(line)

    # From the agent

    def from_program(self, line: bytes) -> None:
        """Check the calls that a line reports, and hold a request for permission until the verdict is there."""
        passes = True
        for message in _messages(line, also_answers=bool(self._requests)):
            method, parameters = message.get("method"), _mapping(message.get("params"))
            name = str(parameters.get("sessionId", ""))
            if method == "session/update" and name:
                self._tell(name, _mapping(parameters.get("update")))
            elif method == "session/request_permission" and name and "id" in message:
                passes = False
                self.start_check(self._decide, name, message, parameters, line)
            elif method is None and "id" in message:
                self._answered(message)
        if passes:
            self.write_to_client(line)

    def _answered(self, message: Mapping[str, Any]) -> None:
        result = _mapping(message.get("result"))
        with self.lock:
            method, cwd = self._requests.pop(json.dumps(message["id"]), ("", ""))
            if method == "initialize":
                agent = _mapping(result.get("agentInfo")).get("name")
                self.guard.agent = self.guard.agent or (agent if isinstance(agent, str) else "")
            elif method == "session/new" and isinstance(result.get("sessionId"), str):
                self._known(result["sessionId"]).cwd = cwd

    def _tell(self, name: str, update: Mapping[str, Any]) -> None:
        number = update.get("toolCallId")
        if update.get("sessionUpdate") not in ("tool_call", "tool_call_update") or not isinstance(
            number, str
        ):
            return
        with self.lock:
            one = self._known(name)
            call = self._call(one, number, update)
            if "content" in update:
                call.about["content"] = update["content"]  # also none: what was there before is a preview
            status = call.about.get("status")
            if status not in _STARTED:
                return  # its arguments may still be missing
            if status != "in_progress":
                del one.calls[number]
            if call.is_refused:
                return
            is_asked, verdict = call.verdict is not None, self._verdict_of(call)
        self.start_check(self._follow, one, number, call, verdict, is_asked)

    def _follow(
        self, one: _AgentSession, number: str, call: _ToolCall, verdict: Future[Verdict], is_asked: bool
    ) -> None:
        """Check a call that runs already, report its result, and cancel the turn if that is the verdict."""
        found = self._wait(verdict) if is_asked else self._check(one, number, call, verdict)
        status = call.about.get("status")
        if found is None:
            return
        if status in ("completed", "failed"):
            one.session.result(found, _result(call.about), is_error=status == "failed")
        if found.decision == "stop" and not is_asked:
            self._cancel(one, found)

    def _decide(
        self, name: str, request: Mapping[str, Any], parameters: Mapping[str, Any], line: bytes
    ) -> None:
        """Pass a request for permission on, or refuse it."""
        # Its content shows the person what is to be done; it is not the result.
        about = {key: one for key, one in _mapping(parameters.get("toolCall")).items() if key != "content"}
        number = str(about.get("toolCallId", ""))
        with self.lock:
            one = self._known(name)
            is_over = one.is_cancelled
            call = self._call(one, number, about)
            is_asked, verdict = call.verdict is not None, self._verdict_of(call)
        if is_over:
            self._answer(request, {"outcome": "cancelled"})
            return
        found = self._wait(verdict) if is_asked else self._check(one, number, call, verdict)
        if found is None or found.may_run:
            if found is not None and found.decision == "warn":
                self._say(one.name, found)
            self.write_to_client(line)
            return
        call.is_refused = True
        options = parameters.get("options")
        option = next(
            (
                offered["optionId"]
                for kind in _REJECTS
                for offered in (options if isinstance(options, list) else ())
                if isinstance(offered, dict) and offered.get("kind") == kind and "optionId" in offered
            ),
            None,
        )
        is_stop = found.decision == "stop"
        if is_stop:
            self._cancel(one, found)
        else:
            self._say(one.name, found)
        refused = (
            {"outcome": "cancelled"}
            if option is None or is_stop
            else {"outcome": "selected", "optionId": option}
        )
        self._answer(request, refused)
        one.session.result(found, found.message, is_error=True)

    def _check(
        self, one: _AgentSession, number: str, call: _ToolCall, verdict: Future[Verdict]
    ) -> Verdict | None:
        try:
            found = one.session.check_calls(
                [Call(_tool(call.about), _arguments(call.about), number, one.cwd)]
            )[0]
        except Exception as error:
            verdict.set_exception(error)
            logger.exception("A call could not be checked.")
            return None
        verdict.set_result(found)
        return found

    def _wait(self, verdict: Future[Verdict]) -> Verdict | None:
        seconds = (
            self.guard.budget_seconds
            + self.guard.hold_seconds
            + self.guard.max_delay_seconds
            + MARGIN_SECONDS
        )
        try:
            return verdict.result(seconds)
        except Exception:  # noqa: BLE001 (reported by the one who asked; nothing here may break an agent)
            return None

    def _cancel(self, one: _AgentSession, verdict: Verdict) -> None:
        """Cancel the turn as the client would, and tell the client; its prompt is then answered by the agent."""
        with self.lock:
            if one.is_cancelled:
                return
            one.is_cancelled = True
        self._say(one.name, verdict)
        parameters = {"sessionId": one.name}
        self.write_to_program(to_line({"jsonrpc": "2.0", "method": "session/cancel", "params": parameters}))

    def _say(self, name: str, verdict: Verdict) -> None:
        """Show the person what LoopGuard says, as a text of the agent."""
        ends = " The turn is being cancelled." if verdict.decision == "stop" else ""
        text = f"\n\n[LoopGuard: {verdict.message}{ends}]\n\n"
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        parameters = {"sessionId": name, "update": update}
        self.write_to_client(to_line({"jsonrpc": "2.0", "method": "session/update", "params": parameters}))

    def _answer(self, request: Mapping[str, Any], outcome: Mapping[str, object]) -> None:
        self.write_to_program(
            to_line({"jsonrpc": "2.0", "id": request["id"], "result": {"outcome": outcome}})
        )

    # With the lock

    def _known(self, name: str) -> _AgentSession:
        found = self._sessions.get(name)
        if found is None:
            found = _AgentSession(name, self.guard.session(name))
        _keep(self._sessions, name, found, MAX_SESSIONS)
        return found

    def _call(self, one: _AgentSession, number: str, about: Mapping[str, Any]) -> _ToolCall:
        call = one.calls.get(number) or _ToolCall()
        _keep(one.calls, number, call, MAX_CALLS)
        call.about |= {key: value for key, value in about.items() if value not in (None, {}, [])}
        return call

    def _verdict_of(self, call: _ToolCall) -> Future[Verdict]:
        if call.verdict is None:
            call.verdict = Future()
        return call.verdict


def run(guard: Guard, command: Sequence[str]) -> int:
    """Guard an agent on the standard streams of this process, and return its exit status."""
    return run_on_stdio(AcpProxy(guard, command))


def _keep(known: OrderedDict[str, Value], key: str, value: Value, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)


def _messages(line: bytes, *, also_answers: bool = False) -> Sequence[Mapping[str, Any]]:
    """Return the message of a line if it may concern calls; a line of something else has none."""
    if not also_answers and not any(word in line for word in _READ):
        return ()
    try:
        document = json.loads(line)
    except ValueError:
        return ()
    return [document] if isinstance(document, dict) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tool(about: Mapping[str, Any]) -> str:
    """Return the name of a tool: given by the agent, else the kind of the call, else its title."""
    extra = (_mapping(one).get("toolName") for one in _mapping(about.get("_meta")).values())
    kind = about.get("kind")
    given = (about.get("name"), *extra, kind if kind != "other" else None, about.get("title"))
    return next((one for one in given if isinstance(one, str) and one), "tool")


def _arguments(about: Mapping[str, Any]) -> Mapping[str, Any]:
    found = about.get("rawInput")
    if isinstance(found, dict):
        return found
    return {key: about[key] for key in ("title", "locations", "rawInput") if key in about}


def _result(about: Mapping[str, Any]) -> Any:
    if "rawOutput" in about:
        return about["rawOutput"]
    content = about.get("content") or None
    if content is None:
        return None
    parts = [_mapping(one).get("content", one) for one in content] if isinstance(content, list) else []
    return _text(parts) if all(_mapping(one).get("type") == "text" for one in parts) else parts


def _text(blocks: Any) -> str:
    """Return the text of blocks of content."""
    found = blocks if isinstance(blocks, list) else ()
    return "\n".join(str(one["text"]) for one in found if isinstance(one, dict) and one.get("type") == "text")
