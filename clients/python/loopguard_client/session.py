"""One conversation or run of an agent: its calls, their results, and what the server does not have yet.

The steps of a check are a generator that yields requests, so that threads and event loops share one implementation.
"""

# ruff: noqa: D102 (`Guard` describes the methods of the protocol)

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from loopguard_client import fallback, wire
from loopguard_client.calls import ENDINGS, STRENGTH, Call, Verdict
from loopguard_client.status import CircuitBreaker
from loopguard_client.transport import NoAnswer, Rejected, Response

MAX_EVENTS_BEFORE_CALL: Final = 200
"""Events that a check sends along; more of them are left to the background sender."""
MAX_OPEN_CALLS: Final = 1_000
TURN_SECONDS: Final = 0.002
"""How often a call checks whether an identical one has its verdict."""
STOP_AFTER: Final = 8
"""The identical call with this number ends the run while the server is away, as with its preset `standard`."""

current_session: ContextVar[Session | None] = ContextVar("loopguard_session", default=None)

Steps = Generator["Request", Response, list[Verdict]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a check needs, and how long it may take from now."""

    method: str
    path: str
    document: Mapping[str, Any] | None
    seconds: float
    wait_url: str = ""


class SessionGuard(Protocol):
    """What a session needs of the `Guard` that creates it."""

    budget_seconds: float
    hold_seconds: float
    max_delay_seconds: float
    breaker: CircuitBreaker

    def wait(self, request: Request) -> Response: ...
    async def await_(self, request: Request) -> Response: ...
    def raise_for_status(self, response: Response) -> None: ...
    def settle(self, session: Session, events: list[dict[str, Any]], response: Response) -> None: ...
    def note_failure(self, error: NoAnswer) -> None: ...
    def note_unguarded(self, number: int) -> None: ...
    def fails_closed(self, tool: str) -> bool: ...
    def wake(self) -> None: ...


@dataclass(slots=True)
class _Checked:
    """A call on its way: what is sent, and what identical calls have in common."""

    call: Call
    event: dict[str, Any]
    key: str


class Session:
    """The calls of one agent, in order. Safe with threads and event loops. Create it with `Guard.session`.

    Attributes
    ----------
    name : str
        Its name on the server.
    """

    def __init__(
        self,
        guard: SessionGuard,
        name: str,
        *,
        agent: str,
        backend: str,
        model: str,
        parent: str,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        is_new: bool,
    ) -> None:
        self.guard = guard
        self.name = wire.name(name)
        self.agent, self.backend, self.model, self.parent = agent, backend, model, parent
        self.tags, self.metadata = tuple(tags), dict(metadata or {})
        self._is_new = is_new
        self._tokens: list[Token[Session | None]] = []
        self.reset()

    def reset(self) -> None:
        """Start empty, as after a fork: the parent process delivers its own events."""
        self._lock = threading.Lock()
        self.outbox: deque[dict[str, Any]] = deque()
        self._counter = fallback.LocalCounter()
        self._said = self._turns = ""
        self._open: OrderedDict[str, _Checked] = OrderedDict()
        self._used_ids: OrderedDict[str, int] = OrderedDict()
        self._asking: set[str] = set()
        self._stopped = ""
        self._usage: dict[str, float] = {}

    # Calls

    def check(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        call_id: str = "",
        cwd: str = "",
        round: str = "",  # noqa: A002 (the word of the API)
    ) -> Verdict:
        """Return the verdict on one call; see `check_calls`."""
        return self.check_calls(
            [Call(tool, {} if arguments is None else arguments, call_id, cwd)], round=round
        )[0]

    async def acheck(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        call_id: str = "",
        cwd: str = "",
        round: str = "",  # noqa: A002 (the word of the API)
    ) -> Verdict:
        """Return the verdict on one call without blocking the event loop; see `check_calls`."""
        verdicts = await self.acheck_calls(
            [Call(tool, {} if arguments is None else arguments, call_id, cwd)], round=round
        )
        return verdicts[0]

    def check_calls(self, calls: Sequence[Call], *, round: str = "") -> list[Verdict]:  # noqa: A002
        """Return the verdicts on the calls of one model response, in their order, with one request.

        Takes at most the budget of the guard, and for a held call the time to wait for its approval, for a delayed one
        its pause. Never raises for a server that is away: the client decides then, and the verdict says so.

        Parameters
        ----------
        calls
            Calls that the agent wants to make now.
        round
            Id of the model response. With it, identical calls of the response count once, even if they are checked one
            by one. Reads all run; of identical writes, only the first does.
        """
        steps = self._check(calls, round)
        try:
            request = next(steps)
            while True:
                try:
                    response = self.guard.wait(request)
                except NoAnswer as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(response)
        except StopIteration as done:
            return list(done.value)

    async def acheck_calls(self, calls: Sequence[Call], *, round: str = "") -> list[Verdict]:  # noqa: A002
        """Return the verdicts without blocking the event loop; see `check_calls`."""
        steps = self._check(calls, round)
        try:
            request = next(steps)
            while True:
                try:
                    response = await self.guard.await_(request)
                except NoAnswer as error:
                    request = steps.throw(error)
                except asyncio.CancelledError:
                    steps.close()
                    raise
                else:
                    request = steps.send(response)
        except StopIteration as done:
            return list(done.value)

    def result(self, call: Verdict | str, content: Any = None, *, is_error: bool = False) -> None:
        """Report the result of a call. Returns at once; it is sent with the next check, or within a second.

        Parameters
        ----------
        call
            The verdict of the call, or its id.
        content
            Text, or any value: other values are sent as JSON. Without content, only that the call has ended.
        is_error
            Whether the call failed.
        """
        call_id = call if isinstance(call, str) else call.call_id
        text = wire.content(content)
        with self._lock:
            checked = self._open.pop(call_id, None)
            event = self._event("result", call_id=checked.event["call_id"] if checked else wire.name(call_id))
            event |= {"content": text, "is_error": is_error}
            if checked is not None:
                self._counter.observe_result(checked.key, wire.digest(f"{is_error}{text}"))
            self.outbox.append(event)
        self.guard.wake()

    def heartbeat(self, call: Verdict | str) -> None:
        """Report that a call still runs and is not stalled. Returns at once; the report is sent within a second.

        Parameters
        ----------
        call
            The verdict of the call, or its id.
        """
        call_id = call if isinstance(call, str) else call.call_id
        with self._lock:
            checked = self._open.get(call_id)
            sent_id = checked.event["call_id"] if checked else wire.name(call_id)
            self.outbox.append(self._event("heartbeat", call_id=sent_id))
        self.guard.wake()

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        call_id: str = "",
        cwd: str = "",
        round: str = "",  # noqa: A002 (the word of the API)
    ) -> GuardedCall:
        """Return a context manager, for ``with`` and ``async with``, around one call.

        Entering it raises `CallBlocked` or `RunStopped` if the call must not run.
        """
        return GuardedCall(self, Call(tool, {} if arguments is None else arguments, call_id, cwd), round)

    # The run

    def user_message(self, text: str) -> None:
        """Report a message of the user. It starts a new run: repeating a call after it is not a loop."""
        self._report_message(text, {})

    def user_messages(self, texts: Sequence[str]) -> None:
        """Report the last of the messages that the user has said in a conversation, once.

        Adapters call it with the conversation that a framework hands to them, as often as they like. A conversation
        that an agent begins anew after it was killed says nothing new.

        Parameters
        ----------
        texts
            All messages of the user, in order.
        """
        if not texts:
            return
        said = json.dumps([self.name, *texts]).encode("utf-8", "surrogatepass")
        name = f"said-{hashlib.blake2b(said, digest_size=16).hexdigest()}"
        with self._lock:
            if name == self._said:
                return
            self._said = name
        self._report_message(texts[-1], {"id": name})

    def user_turn(self, text: str) -> None:
        """Report the next message of the user, where a framework shows only that one.

        The first messages of a process that begins the conversation anew, in the same words, say nothing new.
        """
        with self._lock:
            self._turns = wire.digest(f"{self._turns or self.name}\n{text}")
            name = f"turn-{self._turns}"
        self._report_message(text, {"id": name})

    def _report_message(self, text: str, about: Mapping[str, str]) -> None:
        with self._lock:
            self._counter.clear()
            self._report_usage()
            event = self._event("message", role="user") | {"content": wire.content(text)} | dict(about)
            self.outbox.append(event)
        self.guard.wake()

    def usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost_usd: float = 0,
        round: str = "",  # noqa: A002
    ) -> None:
        """Report the tokens and the cost of a model response. It counts for the first of the calls that follow.

        Parameters
        ----------
        round
            Name of the response, as in `check`, where its calls were checked before: it counts for the first of these,
            once.
        """
        counts = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        with self._lock:
            if round:
                self.outbox.append(self._event("usage", usage=counts, round=wire.name(round)))
            else:
                self._report_usage()
                self._usage = counts
        self.guard.wake()

    def report_usage(self) -> None:
        """Report the usage of a response that no call followed; it counts for the session alone."""
        with self._lock:
            self._report_usage()

    def _report_usage(self) -> None:
        if self._usage:
            self.outbox.append(self._event("usage", usage=self._usage))
            self._usage = {}

    def end(self, outcome: Literal["completed", "failed", "cancelled"] = "completed") -> None:
        """Report that the run has ended."""
        with self._lock:
            self._report_usage()
            self.outbox.append(self._event("end", outcome=outcome))
        self.guard.wake()

    def __enter__(self) -> Self:
        self._tokens.append(current_session.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ValueError, IndexError):  # entered in another context
            current_session.reset(self._tokens.pop())
        if self._is_new:
            self.end("completed" if kind is None else "failed")

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # What the server does not have yet

    def waiting(self, limit: int = 1_000_000) -> list[dict[str, Any]]:
        """Return the events that the server has not acknowledged, oldest first."""
        with self._lock:
            return [event for event, _ in zip(self.outbox, range(limit), strict=False)]

    def delivered(self, events: Iterable[dict[str, Any]]) -> None:
        """Forget events that the server has, or will never accept."""
        known = {event["id"] for event in events}
        with self._lock:
            self.outbox = deque(event for event in self.outbox if event["id"] not in known)

    def drop_oldest(self, number: int) -> int:
        """Drop events that nothing can store any more; return how many."""
        with self._lock:
            dropped = min(number, len(self.outbox))
            for _ in range(dropped):
                self.outbox.popleft()
        return dropped

    # Steps of a check

    def _check(self, calls: Sequence[Call], round_: str) -> Steps:
        if not calls:
            return []
        at = _now()  # of calls with one time, LoopGuard knows that one answer makes them
        checked = [self._checked(call, round_, at) for call in calls]
        with self._lock:
            if self._usage:
                checked[0].event["usage"], self._usage = self._usage, {}
        deadline = time.monotonic() + self.guard.budget_seconds
        if not self.guard.breaker.permits():
            return self._decide_all(checked, self.guard.breaker.reason)
        keys: set[str] = set()
        try:
            # Of identical calls, the server must have one before the next can say that it is another one.
            while not round_ and not (keys := self._turn_of(checked)):
                yield Request("SLEEP", "", None, min(TURN_SECONDS, _left(deadline)))
            if not round_:
                self._count_copies(checked)
            response = yield from self._ask(checked, round_, deadline)
            verdicts = self._verdicts(checked, response)
            self._remember(checked, verdicts)
        except NoAnswer as error:
            self.guard.note_failure(error)
            return self._decide_all(checked, str(error))
        except GeneratorExit:
            self.guard.breaker.abandoned()
            self._abandon(checked)
            raise
        finally:
            with self._lock:
                self._asking -= keys
        answered = time.monotonic()
        self.guard.breaker.succeeded()
        with self._lock:
            self._stopped = next((one.message for one in verdicts if one.decision == "stop"), "")
        for index, verdict in enumerate(verdicts):
            if verdict.decision == "hold" and self.guard.hold_seconds > 0:
                verdicts[index] = yield from self._held(verdict)
            elif verdict.ending == "delay":
                verdicts[index] = yield from self._delayed(checked[index], verdict, answered)
        with self._lock:
            for one, verdict in zip(checked, verdicts, strict=True):
                self._counter.observe_verdict(one.key, may_run=verdict.may_run)
        self._remember(checked, verdicts)
        return verdicts

    def _turn_of(self, checked: Sequence[_Checked]) -> set[str]:
        """Note that these calls are asked about, and return their keys; empty while identical ones are."""
        keys = {one.key for one in checked}
        with self._lock:
            if not self._asking.isdisjoint(keys):
                return set()
            self._asking |= keys
        return keys

    def _count_copies(self, checked: Sequence[_Checked]) -> None:
        """Give each copy of an open call a round of its own: copies in one round would count once and all run."""
        with self._lock:
            seen = {one.key for one in self._open.values()}
        for one in checked:
            if one.key in seen:
                one.event["round"] = one.event["id"]
            seen.add(one.key)

    def _ask(
        self, checked: list[_Checked], round_: str, deadline: float
    ) -> Generator[Request, Response, Response]:
        """Send what the server does not have yet, then the calls."""
        before = self.waiting(MAX_EVENTS_BEFORE_CALL + 1)
        if len(before) > MAX_EVENTS_BEFORE_CALL:
            before = []
        elif any(event["type"] != "result" for event in before):
            response = yield Request("POST", "/events", {"events": before}, _left(deadline))
            self.guard.settle(self, before, response)
            before = []
        document: dict[str, Any] = {
            "session": self.name,
            **self._about(round_),
            "results": before,
            "calls": [one.event for one in checked],
        }
        response = yield Request("POST", "/guard", document, _left(deadline))
        try:
            self.guard.raise_for_status(response)
        except Rejected:
            # One value is beyond the limits of the API. Digests never are; results can be rejected one by one.
            for one in checked:
                one.event["arguments"] = wire.cut(one.event["arguments"])
            document["results"] = before = []
            response = yield Request("POST", "/guard", document, _left(deadline))
            self.guard.raise_for_status(response)
        self.delivered(before)
        return response

    def _verdicts(self, checked: list[_Checked], response: Response) -> list[Verdict]:
        given = response.document.get("verdicts")
        if not isinstance(given, list) or len(given) != len(checked):
            raise NoAnswer("The server gave no verdict for each call.")
        return [_verdict(one, data) for one, data in zip(checked, given, strict=True)]

    def _held(self, verdict: Verdict) -> Generator[Request, Response, Verdict]:
        """Wait until the approval of a held call is decided."""
        approval = str(verdict.approval.get("id", ""))
        wait_url = str(verdict.approval.get("wait_url", ""))
        deadline = time.monotonic() + self.guard.hold_seconds
        while approval and (left := deadline - time.monotonic()) > 0:
            wait = max(1, min(30, int(left)))
            started = time.monotonic()
            try:
                response = yield Request(
                    "GET", f"/approvals/{approval}?wait={wait}", None, wait + 5.0, wait_url
                )
            except NoAnswer:
                wait_url = ""  # the address for live connections may be out of reach; the API answers at once
            else:
                decision = response.document.get("decision")
                if response.status == 200 and decision in STRENGTH:
                    return replace(
                        verdict, decision=decision, message=str(response.document.get("message") or "")
                    )
                if response.status in (401, 403, 404):
                    break
            yield Request("SLEEP", "", None, max(0.0, 1.0 - (time.monotonic() - started)))
        message = verdict.message or f"`{verdict.tool}` needs an approval, and nobody has decided yet."
        return replace(verdict, decision="block", message=f"{message} It did not run. Try something else.")

    def _delayed(
        self, one: _Checked, verdict: Verdict, answered: float
    ) -> Generator[Request, Response, Verdict]:
        """Keep the pause of a delayed call, unless it is longer than the guard waits, and send the call again.

        The pauses of one response began together, when it was `answered`.
        """
        if verdict.retry_after_seconds > self.guard.max_delay_seconds:
            return verdict
        left = verdict.retry_after_seconds - (time.monotonic() - answered)
        yield Request("SLEEP", "", None, max(0.0, left))
        document = {"session": self.name, **self._about(), "calls": [one.event]}
        try:
            response = yield Request("POST", "/guard", document, self.guard.budget_seconds)
            self.guard.raise_for_status(response)
            return self._verdicts([one], response)[0]
        except NoAnswer as error:
            self.guard.note_failure(error)
            if self.guard.fails_closed(verdict.tool):
                return verdict
            # The agent has waited; nothing else speaks against the call.
            return Verdict(
                tool=verdict.tool,
                call_id=verdict.call_id,
                decision="allow",
                source="client",
                reason=str(error),
            )

    def _decide_all(self, checked: list[_Checked], reason: str) -> list[Verdict]:
        """Decide without the server, and keep the calls until it is back."""
        verdicts = []
        for one in checked:
            verdicts.append(verdict := self._decide(one, reason))
            with self._lock:
                self.outbox.append(one.event | {"type": "call", "session": self.name, **self._about()})
                if not verdict.may_run:
                    refused = self._event("result", call_id=one.event["call_id"])
                    self.outbox.append(refused | {"content": verdict.message, "is_error": True})
        self._remember(checked, verdicts)
        self.guard.note_unguarded(len(checked))
        return verdicts

    def _decide(self, one: _Checked, reason: str) -> Verdict:
        tool = one.call.tool
        with self._lock:
            number = self._counter.count(one.key)
            stopped = self._stopped
        verdict = Verdict(
            tool=tool, call_id=one.call.call_id, decision="allow", source="client", reason=reason
        )
        if stopped:
            return replace(verdict, decision="stop", message=stopped)
        if number >= fallback.LIMIT:
            text = f"This is call {number} of `{tool}` with the same arguments and no new result. It did not run. "
            if number >= STOP_AFTER:
                return replace(verdict, decision="stop", message=f"{text}The run ends here.")
            return replace(
                verdict,
                decision="block",
                message=f"{text}Change the arguments, use another tool, or say what is missing.",
            )
        if self.guard.fails_closed(tool):
            text = f"`{tool}` did not run: it needs a verdict from LoopGuard, which is unreachable. Try again later."
            return replace(verdict, decision="block", message=text)
        return verdict

    # Bookkeeping

    def _checked(self, call: Call, round_: str, at: str) -> _Checked:
        tool, arguments = wire.name(call.tool, "tool") or "unnamed", wire.arguments(call.arguments)
        if not call.call_id:
            call = replace(call, call_id=wire.new_id("call_"))
        event: dict[str, Any] = {
            "id": wire.new_id("evt_"),
            "tool": tool,
            "arguments": arguments,
            "occurred_at": at,
        }
        if call.cwd:
            event["cwd"] = wire.name(call.cwd, "cwd")
        if round_:
            event["round"] = wire.name(round_)
        with self._lock:
            event["call_id"] = self._unique_id(call.call_id)
        return _Checked(call, event, wire.key(tool, arguments, call.cwd))

    def _unique_id(self, call_id: str) -> str:
        """Return the id to send. Model servers use ids again; an id whose call has ended gets a number."""
        sent = wire.name(call_id)
        if sent.startswith("seq-"):
            sent = f"client-{sent}"[: wire.MAX_NAME]
        used = self._used_ids.get(sent, 0)
        if call_id in self._open:
            return str(self._open[call_id].event["call_id"])
        self._used_ids[sent] = used + 1
        self._used_ids.move_to_end(sent)
        if len(self._used_ids) > MAX_OPEN_CALLS:
            self._used_ids.popitem(last=False)
        return f"{sent[: wire.MAX_NAME - 8]}~{used + 1}" if used else sent

    def _remember(self, checked: list[_Checked], verdicts: list[Verdict]) -> None:
        with self._lock:
            for one, verdict in zip(checked, verdicts, strict=True):
                if verdict.may_run:
                    self._open[one.call.call_id] = one
            while len(self._open) > MAX_OPEN_CALLS:
                self._open.popitem(last=False)

    def _abandon(self, checked: list[_Checked]) -> None:
        """Report calls whose agent was cancelled while it waited: they may be stored and never run."""
        with self._lock:
            for one in checked:
                self.outbox.append(one.event | {"type": "call", "session": self.name, **self._about()})
                ended = self._event("result", call_id=one.event["call_id"])
                self.outbox.append(ended | {"content": "Cancelled before it ran.", "is_error": True})
        self.guard.wake()

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        return {
            "type": kind, "id": wire.new_id("evt_"), "session": self.name, "occurred_at": _now(), **values
        }  # fmt: skip

    def _about(self, round_: str = "") -> dict[str, Any]:
        about = {
            "round": wire.name(round_),
            "agent": wire.name(self.agent, "agent"),
            "backend": wire.name(self.backend, "backend"),
            "model": wire.name(self.model, "model"),
            "parent_session": wire.name(self.parent),
        }
        return {field: value for field, value in about.items() if value} | wire.labels(
            self.tags, self.metadata
        )


class GuardedCall:
    """One call in a ``with`` block; the block runs only if the call may run.

    Attributes
    ----------
    verdict : Verdict
        After entering.
    """

    verdict: Verdict

    def __init__(self, session: Session, call: Call, round_: str) -> None:
        self._session, self._call, self._round = session, call, round_
        self._has_result = False

    def result(self, content: Any) -> Any:
        """Report the result, and return it for the model: a text has the warning, if there is one, in front of it."""
        self._has_result = True
        self._session.result(self.verdict, content)
        return self.verdict.with_warning(content) if isinstance(content, str) else content

    def __enter__(self) -> Self:
        self.verdict = self._session.check_calls([self._call], round=self._round)[0]
        self.verdict.raise_if_refused()
        return self

    async def __aenter__(self) -> Self:
        self.verdict = (await self._session.acheck_calls([self._call], round=self._round))[0]
        self.verdict.raise_if_refused()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_result:
            return
        text = f"{type(error).__name__}: {error}" if error is not None else None
        self._session.result(self.verdict, text, is_error=error is not None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _verdict(one: _Checked, data: Any) -> Verdict:
    if not isinstance(data, dict) or data.get("decision") not in STRENGTH:
        raise NoAnswer("The server gave a verdict that this client does not know.")
    ending, pause = data.get("ending"), data.get("retry_after_seconds")
    return Verdict(
        tool=one.call.tool,
        call_id=one.call.call_id,
        decision=data["decision"],
        message=str(data.get("message") or ""),
        incident=str(data.get("incident") or ""),
        finding=data.get("finding") or {},
        approval=data.get("approval") or {},
        ending=ending if data["decision"] == "block" and ending in ENDINGS else "",
        retry_after_seconds=float(pause) if isinstance(pause, (int, float)) else 0.0,
    )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise NoAnswer("The call timed out before the server answered.")
    return left


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
