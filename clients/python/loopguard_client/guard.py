"""The guard of a process: configuration, requests to the server, and what happens while it is away."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, ParamSpec, TypeVar, cast, overload
from urllib.parse import urlsplit

from loopguard_client import wire
from loopguard_client.calls import CallBlocked, HardStop, RunStopped
from loopguard_client.credentials import Credentials
from loopguard_client.session import Request, Session, current_session
from loopguard_client.status import CircuitBreaker, Pause, Status, logger
from loopguard_client.transport import NoAnswer, Rejected, Response, Transport

P = ParamSpec("P")
R = TypeVar("R")

BUDGET_SECONDS: Final = 0.25
FLUSH_SECONDS: Final = 0.5
"""How long a result waits to be sent with the next check."""
SEND_SECONDS: Final = 5.0
BATCH_EVENTS: Final = 100
MAX_WAITING_EVENTS: Final = 10_000
MAX_SESSIONS: Final = 1_000
TAGS_VARIABLE: Final = "LOOPGUARD_TAGS"
"""The variable in which `loopguard run` passes the tags of its run on."""
TIMEOUT_HEADER: Final = "LoopGuard-Timeout-Ms"

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """Asks a LoopGuard server before each tool call, and decides by itself while the server is unreachable.

    Safe with threads, event loops and fork. Create one per process and keep it.

    Parameters
    ----------
    url, key : str
        Address of the server and an API key with the scopes `guard` and `ingest`. Without them:
        ``LOOPGUARD_URL`` and ``LOOPGUARD_KEY``, else what ``loopguard login`` stored.
    agent, backend, model : str
        Names for the screens, and for settings by agent or model.
    tags : iterable of str
        Tags of all sessions, to find and contain them by, beside those in ``LOOPGUARD_TAGS``.
    metadata : mapping
        Metadata of all sessions, as in ``{"customer": "acme"}``.
    budget_seconds : float
        How long a check may take, except for a held call; 0.25 by default. Afterwards the client decides.
    fail_closed : iterable of str
        Tools that do not run without a verdict, as names or patterns such as ``delete_*``. All others run.
    hold_seconds : float
        How long a held call waits for its approval; 0 returns the verdict ``hold`` at once.
    max_delay_seconds : float
        How long a check waits for a delayed call, which runs then; 30 by default. A call with a longer pause is blocked
        with a message that names the pause, and with 0 every delayed call is.
    on_status : callable
        Called with the status, from any thread, when the guard becomes degraded or recovers.

    Raises
    ------
    ValueError
        Address or key are missing or invalid.
    """

    def __init__(
        self,
        url: str = "",
        key: str = "",
        *,
        agent: str = "",
        backend: str = "",
        model: str = "",
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        budget_seconds: float = BUDGET_SECONDS,
        fail_closed: Iterable[str] = (),
        hold_seconds: float = 120.0,
        max_delay_seconds: float = 30.0,
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        found = Credentials.find(url, key)
        if budget_seconds <= 0:
            raise ValueError("`budget_seconds` must be more than 0.")
        if isinstance(fail_closed, str):
            raise ValueError("`fail_closed` must be a list of tools, not a string.")  # noqa: TRY004
        if isinstance(tags, str):
            raise ValueError("`tags` must be a list of tags, not a string.")  # noqa: TRY004
        self.agent, self.backend, self.model = agent, backend, model
        surrounding = (tag.strip() for tag in os.environ.get(TAGS_VARIABLE, "").split(","))
        self.tags, self.metadata = (*tags, *filter(None, surrounding)), dict(metadata or {})
        self.budget_seconds, self.hold_seconds = budget_seconds, hold_seconds
        self.max_delay_seconds = max_delay_seconds
        self._fail_closed = tuple(fail_closed)
        self._on_status = on_status
        self._transport = Transport(found.url, found.key, f"loopguard-client/{_version()}")
        self._key = found.key
        self._live: dict[str, Transport] = {}
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.reset()
        _guards.add(self)

    def reset(self) -> None:
        """Start anew in a child process, which has no threads and no connections of its parent."""
        self._lock = threading.Lock()
        self.breaker = CircuitBreaker(self._status_changed)
        self._pause_of_reports = Pause()
        self._transport.reset()
        self._live.clear()
        for session in self._sessions.values():
            session.reset()
        self._default: Session | None = None
        self._unguarded = self._dropped = 0
        self._sender: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._may_send_events = True

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._transport.url

    @property
    def status(self) -> Status:
        """Whether calls are guarded, and which events the server has not received."""
        reason = self.breaker.reason
        return Status(bool(reason), reason, self._unguarded, self._count_waiting(), self._dropped)

    def sent_by(self, program: str) -> None:
        """Tell the server what the calls pass through: behind a proxy of tools, a stop ends no run."""
        self._transport.name_program(program)

    @property
    def degraded(self) -> bool:
        """Whether the client decides by itself, because the last request got no verdict."""
        return bool(self.breaker.reason)

    # Sessions

    def session(
        self,
        name: str = "",
        *,
        agent: str = "",
        backend: str = "",
        model: str = "",
        parent: str = "",
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> Session:
        """Return the session of a name, or a new one.

        In a ``with`` block it is the session of the tools that are called there. Leaving the block of a session without
        a name ends it on the server.

        Parameters
        ----------
        name
            Any text that names the conversation, at most 256 characters.
        agent, backend, model
            Instead of those of the guard.
        parent
            Name of the session whose agent started this one.
        tags, metadata
            Added to those of the guard and, of a known session, to those it has.
        """
        given = wire.name(name) if name else wire.new_id(f"{agent or self.agent or 'agent'}-")
        with self._lock:
            session = self._sessions.get(given)
            if session is None:
                session = Session(
                    self,
                    given,
                    agent=agent or self.agent,
                    backend=backend or self.backend,
                    model=model or self.model,
                    parent=parent,
                    tags=(*self.tags, *tags),
                    metadata={**self.metadata, **(metadata or {})},
                    is_new=not name,
                )
                self._sessions[given] = session
                self._forget_sessions()
            else:
                self._sessions.move_to_end(given)
                session.agent, session.parent = agent or session.agent, parent or session.parent
                session.backend, session.model = backend or session.backend, model or session.model
                session.tags = (*session.tags, *(tag for tag in tags if tag not in session.tags))
                session.metadata |= metadata or {}
        return session

    def _forget_sessions(self) -> None:
        for name in list(self._sessions)[: max(0, len(self._sessions) - MAX_SESSIONS)]:
            if not self._sessions[name].outbox:
                del self._sessions[name]

    def surrounding_session(self) -> Session | None:
        """Return the session of the surrounding ``with`` block, if there is one."""
        session = current_session.get()
        return session if session is not None and session.guard is self else None

    def current_session(self) -> Session:
        """Return the session of the surrounding ``with`` block, else one that this process uses for all other calls."""
        session = self.surrounding_session()
        if session is not None:
            return session
        if self._default is None:
            self._default = self.session()
        return self._default

    # The decorator

    @overload
    def tool(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def tool(
        self, /, *, name: str = "", message_as_result: bool = False, hard_stop: bool = False
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def tool(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str = "",
        message_as_result: bool = False,
        hard_stop: bool = False,
    ) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
        """Guard every call of a function, or of a coroutine function.

        A warning is put in front of a result that is a text.

        Parameters
        ----------
        name
            Name of the tool; the function's name by default.
        message_as_result
            Return the message of a blocked call as its result instead of raising `CallBlocked`. `RunStopped` is raised
            in any case.
        hard_stop
            Raise `HardStop`, a `BaseException`, instead of `RunStopped`: for frameworks that give every other exception
            of a tool to the model as its result, and so never end. Code that cleans up with ``except Exception`` does
            not see it either.
        """
        guarded = functools.partial(
            self._guarded, name=name, message_as_result=message_as_result, hard_stop=hard_stop
        )
        return guarded if function is None else guarded(function)

    def _guarded(
        self, function: Callable[P, R], *, name: str, message_as_result: bool, hard_stop: bool
    ) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("A generator cannot be guarded: its calls run while their results are read.")
        tool = name or getattr(function, "__name__", type(function).__name__)
        signature = inspect.signature(function)

        def arguments_of(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
            bound = signature.bind(*args, **kwargs)  # raises TypeError, as the call itself would
            bound.apply_defaults()
            return {key: value for key, value in bound.arguments.items() if key not in ("self", "cls")}

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                try:
                    async with self.current_session().call(tool, arguments_of(*args, **kwargs)) as call:
                        return call.result(await function(*args, **kwargs))
                except CallBlocked as blocked:
                    return _message(blocked, tool, is_result=message_as_result)
                except RunStopped as stopped:
                    if hard_stop:
                        raise HardStop(stopped.verdict) from None
                    raise

            return cast("Callable[P, R]", guarded_async)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                with self.current_session().call(tool, arguments_of(*args, **kwargs)) as call:
                    return cast("R", call.result(function(*args, **kwargs)))
            except CallBlocked as blocked:
                return cast("R", _message(blocked, tool, is_result=message_as_result))
            except RunStopped as stopped:
                if hard_stop:
                    raise HardStop(stopped.verdict) from None
                raise

        return guarded

    def fails_closed(self, tool: str) -> bool:
        """Return whether a tool does not run without a verdict."""
        return any(fnmatchcase(tool, pattern) for pattern in self._fail_closed)

    # Requests, for sessions

    def wait(self, request: Request) -> Response:
        """Send a request and wait for its response.

        Raises
        ------
        NoAnswer
            The server did not answer within the time of the request.
        """
        if request.method == "SLEEP":
            time.sleep(request.seconds)
            return Response(200, {}, 0.0)
        future = self._start(request)
        try:
            return future.result(request.seconds)
        except TimeoutError:
            future.cancel()
            raise NoAnswer(self._late()) from None
        except CancelledError:
            raise NoAnswer(self._late()) from None

    async def await_(self, request: Request) -> Response:
        """Send a request and wait for its response without blocking the event loop; see `wait`."""
        if request.method == "SLEEP":
            await asyncio.sleep(request.seconds)
            return Response(200, {}, 0.0)
        future = self._start(request)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), request.seconds)
        except TimeoutError:
            raise NoAnswer(self._late()) from None

    def _start(self, request: Request) -> Future[Response]:
        try:
            return self._transport_of(request).send(
                request.method,
                request.path,
                request.document,
                seconds=request.seconds,
                headers=_headers(request),
            )
        except Exception as error:  # noqa: BLE001 (nothing here may break an agent)
            raise NoAnswer(f"The request could not be sent: {type(error).__name__}: {error}") from None

    def _late(self) -> str:
        return f"{self.url} did not answer in time."

    def _transport_of(self, request: Request) -> Transport:
        """Return the connections to the server, or to its address for live connections."""
        if not request.wait_url:
            return self._transport
        parts = urlsplit(request.wait_url)
        base = f"{parts.scheme}://{parts.netloc}{parts.path.partition('/api/v1')[0]}"
        if base == self.url:
            return self._transport
        with self._lock:
            if base not in self._live:
                self._live[base] = Transport(base, self._key, f"loopguard-client/{_version()}")
            return self._live[base]

    def raise_for_status(self, response: Response) -> None:
        """Raise unless a request succeeded.

        Raises
        ------
        NoAnswer
            It failed, and may succeed later.
        Rejected
            It will never succeed.
        """
        if response.status < 300:
            return
        code = str(response.document.get("code") or "")
        detail = str(response.document.get("detail") or "")[:300]
        text = f"{self.url} answered {response.status} {code}: {detail}".strip(": ")
        if 300 <= response.status < 400 or response.status in (401, 403, 404, 405):
            error: NoAnswer = _Misconfigured(text)
        elif response.status in (400, 409, 413, 415, 422):
            error = Rejected(text)
        else:
            error = _TooMany(text) if response.status == 429 else NoAnswer(text)
            error.retry_after_seconds = response.retry_after_seconds
        raise error

    def note_failure(self, error: NoAnswer) -> None:
        """Count a request that got no verdict."""
        if isinstance(error, Rejected):
            # The server works; this request was wrong. Say so, and keep asking for the others.
            self.breaker.succeeded()
            logger.warning("LoopGuard rejected a call, which is not guarded: %s", error)
            return
        self.breaker.failed(
            str(error),
            retry_after_seconds=error.retry_after_seconds,
            is_permanent=isinstance(error, _Misconfigured),
        )

    def _note_failed_report(self, error: NoAnswer) -> None:
        """Count a report that failed; too many of them do not keep the client from asking for verdicts."""
        if not isinstance(error, _TooMany):
            self.note_failure(error)
            return
        self.breaker.abandoned()
        self._pause_of_reports.begin(str(error), error.retry_after_seconds)

    def note_unguarded(self, number: int) -> None:
        """Count calls without a verdict of the server."""
        with self._lock:
            self._unguarded += number
        self.wake()

    def settle(self, session: Session, events: list[dict[str, Any]], response: Response) -> None:
        """Forget events that the server has stored, or will never accept.

        Raises
        ------
        NoAnswer
            They have to be sent again.
        """
        try:
            self.raise_for_status(response)
        except Rejected as error:
            session.delivered(events)
            self._drop(len(events), str(error))
            return
        rejected = response.document.get("rejected") or []
        session.delivered(events)
        if rejected:
            self._drop(len(rejected), f"{rejected[0].get('code')}: {rejected[0].get('hint')}")

    def _drop(self, number: int, reason: str) -> None:
        with self._lock:
            self._dropped += number
        logger.warning("LoopGuard did not receive %d events of this agent: %s", number, reason)

    def _status_changed(self, _reason: str) -> None:
        if self._on_status is not None:
            try:
                self._on_status(self.status)
            except Exception:  # noqa: BLE001 (a function of the application may raise anything)
                logger.exception("`on_status` failed.")

    # The background sender

    def wake(self) -> None:
        """Start the background sender if it is not running, and let it send the waiting events."""
        if self._sender is None and not self._is_closed:
            with self._lock:
                if self._sender is None:
                    self._sender = threading.Thread(
                        target=_send_forever,
                        args=(weakref.ref(self), self._wake),
                        name="loopguard-sender",
                        daemon=True,
                    )
                    try:
                        self._sender.start()
                    except RuntimeError:  # the interpreter ends; `close` sends the rest
                        self._sender = None
        self._wake.set()

    def send_waiting(self) -> bool:
        """Send the waiting events in order while the server answers; return whether any are left."""
        self._bound()
        for session in self._with_events():
            while events := session.waiting(BATCH_EVENTS):
                if self._pause_of_reports.seconds or not self.breaker.permits():
                    return True
                try:
                    self._send(session, events, SEND_SECONDS)
                except NoAnswer as error:
                    self._note_failed_report(error)
                    return True
                self.breaker.succeeded()
        return False

    def _send(
        self, session: Session, events: list[dict[str, Any]], seconds: float, *, here: bool = False
    ) -> None:
        def send(path: str, document: Mapping[str, Any]) -> Response:
            if here:
                return self._transport.send_here("POST", path, document, seconds=seconds)
            return self.wait(Request("POST", path, document, seconds))

        if self._may_send_events:
            response = send("/events", {"events": events})
            if response.status != 403:
                self.settle(session, events, response)
                return
            self._may_send_events = False
        # A key that may only ask can still report results.
        others = [event for event in events if event["type"] != "result"]
        if others:
            session.delivered(others)
            self._drop(len(others), "the key has no scope `ingest`.")
        results = [event for event in events if event["type"] == "result"]
        if results:
            self.settle(session, results, send("/guard", {"session": session.name, "results": results}))

    def _with_events(self) -> list[Session]:
        with self._lock:
            return [session for session in self._sessions.values() if session.outbox]

    def _count_waiting(self) -> int:
        with self._lock:
            return sum(len(session.outbox) for session in self._sessions.values())

    def _bound(self) -> None:
        """Drop the oldest events beyond the limit of memory."""
        surplus = self._count_waiting() - MAX_WAITING_EVENTS
        for session in self._with_events() if surplus > 0 else ():
            surplus -= (dropped := session.drop_oldest(surplus))
            self._drop(dropped, f"more than {MAX_WAITING_EVENTS:,} waited.")
            if surplus <= 0:
                break

    def flush(self, seconds: float = 2.0) -> bool:
        """Send the waiting events now; return whether the server has everything.

        Parameters
        ----------
        seconds
            How long to try.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            sessions = [*self._sessions.values()]
        for session in sessions:
            session.report_usage()
        for session in self._with_events():
            while events := session.waiting(BATCH_EVENTS):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                try:
                    self._send(session, events, left, here=True)
                except NoAnswer as error:
                    self._note_failed_report(error)
                    return False
        return True

    def close(self, seconds: float = 2.0) -> bool:
        """Send the waiting events, and end the background sender; return whether the server has everything."""
        self._is_closed = True
        self._wake.set()
        return self.flush(seconds)


class _TooMany(NoAnswer):
    """The server takes no more such requests for now."""


class _Misconfigured(NoAnswer):
    """Address or key is wrong: retrying soon is pointless."""


def _headers(request: Request) -> dict[str, str]:
    return {TIMEOUT_HEADER: str(max(1, int(request.seconds * 1000)))} if request.path == "/guard" else {}


def _message(blocked: CallBlocked, tool: str, *, is_result: bool) -> str:
    # The function may itself have called another guarded one, whose message is not the result of this one.
    if is_result and blocked.verdict.tool == tool:
        return blocked.verdict.message
    raise blocked


def _send_forever(reference: weakref.ref[Guard], wake: threading.Event) -> None:
    """Send waiting events until the guard is closed or gone."""
    while True:
        wake.wait(60.0)
        guard = reference()
        if guard is None or guard._is_closed:
            return
        was_woken = wake.is_set()
        wake.clear()
        waits = (guard.breaker.seconds_until_next_try(), guard._pause_of_reports.seconds)
        pause = max(FLUSH_SECONDS, *waits) if was_woken else 0.0
        del guard
        if pause:
            time.sleep(pause)
        guard = reference()
        if guard is None or guard._is_closed:
            return
        try:
            if guard.send_waiting():
                wake.set()
        except Exception:  # noqa: BLE001 (without this thread, results would pile up unseen)
            logger.exception("The background sender of LoopGuard failed; it tries again.")
            wake.set()
        del guard


def _version() -> str:
    try:
        return version("loopguard-client")
    except PackageNotFoundError:  # used from a checkout
        return "checkout"


def _after_fork() -> None:
    for guard in list(_guards):
        guard.reset()


@atexit.register
def _at_exit() -> None:
    for guard in list(_guards):
        if not guard.degraded:
            guard.close(1.0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
