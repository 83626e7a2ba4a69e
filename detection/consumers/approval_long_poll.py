"""The long poll of an approval: `GET /api/v1/approvals/{id}?wait=30`, without a thread per waiting agent.

One task of the process polls for closed approvals twice a second, with two queries however many agents wait. The broker
only makes it faster. A revoked key ends its waits with 401.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl

import orjson
import structlog
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
    Scope,
)
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.db import DatabaseError
from redis.exceptions import RedisError

from detection import clock
from detection.engine import wire_shapes
from detection.integrations.hosts import HOSTS, Host
from detection.models import KeyScope
from detection.selectors.approvals import closed_among
from detection.services import keys
from detection.services.approvals import decisions
from detection.services.containments import settling
from detection.services.errors import ServiceError
from detection.services.tracking.documents import approval_document, hook_document
from detection.stream.hints import approval_group
from detection.web.access_watch import KeyAccess, access_watch
from detection.web.ending import is_closing
from detection.web.known_keys import MAX_UNTRUSTED, KnownKeys
from detection.web.process_metrics import CONNECTIONS

log = structlog.get_logger(__name__)
PATH = re.compile(r"/api/v1/approvals/([a-z]{3}_[0-9a-z]{1,40})")
MAX_WAIT_SECONDS = 60.0
POLL_SECONDS = 0.5
"""Also how soon held calls end that a containment covers, without the broker."""
MAX_WAITERS = 5_000
BROKER_TIMEOUT_SECONDS = 1.0
_T = TypeVar("_T")
UNKNOWN_KEY = "The key is unknown, revoked or expired."


class LongPollError(Exception):
    """An error response: status, stable code, detail, field."""

    def __init__(self, status: int, code: str, detail: str, path: str = "") -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.path = status, code, detail, path


class ApprovalWaiters:
    """The agents that wait for approvals in this process.

    Wakes the agents of an approval when the broker reports it as closed, or when the poll finds it closed.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._projects: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._channel = ""
        self._joined: set[str] = set()

    def __len__(self) -> int:
        return sum(len(events) for events in self._waiting.values())

    @contextlib.asynccontextmanager
    async def event_for(self, project_id: int, public_id: str) -> Any:
        """Yield an event that is set when the approval may be closed."""
        event = asyncio.Event()
        self._waiting[public_id].add(event)
        self._projects[public_id] = project_id
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._listen())]
        elif self._channel:
            await self._join(public_id)
        try:
            yield event
        finally:
            self._waiting[public_id].discard(event)
            if not self._waiting[public_id]:
                del self._waiting[public_id], self._projects[public_id]
            # Before the await, which may be cancelled itself.
            if not self._waiting:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []
            if public_id not in self._waiting:
                await self._leave(public_id)

    def _wake(self, public_id: str) -> None:
        for event in self._waiting.get(public_id, ()):
            event.set()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if is_closing.is_set():
                    for public_id in [*self._waiting]:
                        self._wake(public_id)
                for public_id in await database_sync_to_async(_closed)({**self._projects}):
                    self._wake(public_id)
            except DatabaseError as error:
                log.info("approval_poll_failed", error=str(error)[:200])

    async def _listen(self) -> None:
        """Receive closed approvals from the broker, across its outages."""
        layer = get_channel_layer()
        while True:
            try:
                async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                    channel = await layer.new_channel()
                self._channel, self._joined = channel, set()
                for public_id in [*self._waiting]:
                    await self._join(public_id)
                while True:
                    message = await layer.receive(channel)
                    self._wake(message.get("id", ""))
            except (OSError, TimeoutError, RedisError) as error:
                log.info("approval_broker_unreachable", error=str(error)[:200])
            finally:
                try:
                    for public_id in [*self._joined]:
                        await self._leave(public_id)
                finally:
                    self._channel = ""
            await asyncio.sleep(random.uniform(1.0, 3.0))  # noqa: S311 (spreads the load, keeps no secret)

    async def _join(self, public_id: str) -> None:
        if public_id in self._joined:
            return
        with contextlib.suppress(OSError, TimeoutError, RedisError):
            async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                await get_channel_layer().group_add(approval_group(public_id), self._channel)
                self._joined.add(public_id)

    async def _leave(self, public_id: str) -> None:
        if public_id not in self._joined:
            return
        self._joined.discard(public_id)
        with contextlib.suppress(OSError, TimeoutError, RedisError):
            async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                await get_channel_layer().group_discard(approval_group(public_id), self._channel)


def _closed(projects: Mapping[str, int]) -> set[str]:
    """Return the approvals that are closed, after those of calls which are contained by now were withdrawn.

    Parameters
    ----------
    projects
        The project of each approval.
    """
    settling.settle_waiting(projects)
    return closed_among([(project_id, public_id) for public_id, project_id in projects.items()], clock.now())


class ApprovalLongPoll:
    """ASGI middleware that serves approvals and passes all other requests on.

    Attributes
    ----------
    waiters : ApprovalWaiters
        The waiting agents. They belong to one event loop, and so does the middleware.
    """

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self.waiters, self._keys = ApprovalWaiters(), KeyLookups()
        self._reads: SharedReads[_Found] = SharedReads()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Respond when the approval is closed, or after the requested time."""
        found = PATH.fullmatch(cast("HTTPScope", scope)["path"])
        if found is None or cast("HTTPScope", scope)["method"] != "GET":
            await self._application(scope, receive, send)
            return
        request = cast("HTTPScope", scope)
        request_id = f"req_{secrets.token_hex(12)}"
        gone = asyncio.create_task(_until_disconnected(receive))
        work = asyncio.create_task(_response(request, found[1], self.waiters, self._keys, self._reads))
        try:
            with CONNECTIONS.labels("long_poll").track_inprogress():
                await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return
            await _send(send, request_id, 200, "application/json", work.result())
        except LongPollError as error:
            document = {
                "type": f"/api/v1/docs#{error.code}",
                "title": HTTPStatus(error.status).phrase,
                "status": error.status,
                "code": error.code,
                "detail": error.detail,
                "request_id": request_id,
            } | ({"path": error.path} if error.path else {})
            await _send(send, request_id, error.status, "application/problem+json", document)
        finally:
            for task in (gone, work):
                task.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)


class SharedReads(Generic[_T]):
    """Reads of the database that all who ask for the same before it begins share.

    The agents of a project have one key, and all return at once when the process has restarted; and several calls may
    wait for one approval.
    """

    def __init__(self, executor: ThreadPoolExecutor | None = None) -> None:
        self._executor = executor
        self._queued: dict[Hashable, asyncio.Task[_T]] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._queued

    async def get(self, key: Hashable, read: Callable[[], _T]) -> _T:
        """Return what a read returns that begins after this call."""
        task = self._queued.get(key)
        if task is None:

            def begin() -> _T:
                self._queued.pop(key, None)  # a later request needs a read of its own
                return read()

            task = self._queued[key] = asyncio.create_task(_from_database(begin, self._executor))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, done: asyncio.Task[_T]) -> None:
        if self._queued.get(key) is done:  # it never began
            del self._queued[key]


class KeyLookups:
    """Looks up keys; those that are not known to be valid in a thread of their own, and a bounded number of them."""

    def __init__(self) -> None:
        self._known = KnownKeys()
        self._unknown: SharedReads[keys.Principal | None] = SharedReads(
            ThreadPoolExecutor(1, thread_name_prefix="approval-keys")
        )

    async def principal_of(self, token: str) -> keys.Principal:
        """Return the principal of a key that may wait for approvals."""
        digest = keys.digest_of(token)
        find = partial(keys.authenticate, token)
        principal = await (_from_database(find) if digest in self._known else self._of_unknown(digest, find))
        self._known.note(digest, is_valid=principal is not None)
        if principal is None:
            raise LongPollError(401, "unknown_key", UNKNOWN_KEY)
        if KeyScope.GUARD not in principal.scopes:
            raise LongPollError(403, "missing_scope", "The key needs the `guard` scope.")
        return principal

    async def _of_unknown(
        self, digest: str, find: Callable[[], keys.Principal | None]
    ) -> keys.Principal | None:
        if digest not in self._unknown and len(self._unknown) >= MAX_UNTRUSTED:
            raise LongPollError(503, "too_many_waiting", "Too many keys are looked up. Retry in a moment.")
        return await self._unknown.get(digest, find)


async def _until_disconnected(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _response(
    request: HTTPScope,
    public_id: str,
    waiters: ApprovalWaiters,
    lookups: KeyLookups,
    reads: SharedReads[_Found],
) -> dict[str, object]:
    wait_seconds, form = _parameters(request)
    principal = await lookups.principal_of(_token_of(request))
    project_id = principal.project_id
    read = partial(_read, reads, project_id, public_id, form)
    found = await read()
    if not found.is_open or wait_seconds <= 0:
        return found.document
    if len(waiters) >= MAX_WAITERS:
        raise LongPollError(503, "too_many_waiting", "Too many agents are waiting. Retry in a moment.")
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_seconds
    async with waiters.event_for(project_id, public_id) as event:
        revoked = asyncio.Event()

        def end(_: str) -> None:
            revoked.set()
            event.set()

        with access_watch.watching(KeyAccess(principal.key_id), end):
            while loop.time() < until and not is_closing.is_set():
                # It may have been closed before the event was registered, so read again before each wait.
                found = await read()
                due = loop.time() + found.seconds_left
                if not found.is_open:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min(until, due + 0.005)):
                        await event.wait()
                if revoked.is_set():
                    raise LongPollError(401, "unknown_key", UNKNOWN_KEY)
                event.clear()
            if found.is_open:
                found = await read()
    return found.document


class _Form(NamedTuple):
    """Format of the response: with the message in a wire shape for a call, or as the response to a hook of a host."""

    shape: wire_shapes.Shape | None = None
    host: Host | None = None
    call_id: str = ""


class _Found(NamedTuple):
    """An approval, as far as a waiting agent needs it."""

    document: dict[str, object]
    seconds_left: float
    is_open: bool


async def _read(reads: SharedReads[_Found], project_id: int, public_id: str, form: _Form) -> _Found:
    def read() -> _Found:
        approval = decisions.hand_out(project_id, public_id)
        if form.host is not None:
            document = hook_document(approval, form.host.shape)
        else:
            document = approval_document(approval, form.shape, form.call_id)
        seconds_left = (approval.deadline - clock.now()).total_seconds()
        return _Found(document, seconds_left, approval.is_open)

    try:
        return await reads.get((project_id, public_id, form), read)
    except ServiceError as error:
        raise LongPollError(error.status, error.code, error.detail, error.field) from error


async def _from_database(read: Callable[[], _T], executor: ThreadPoolExecutor | None = None) -> _T:
    """Return the result of a read; raises `LongPollError` (503) while the database is unavailable.

    Without an executor, it runs in the thread of this process that does all such work.
    """
    run = database_sync_to_async(read, thread_sensitive=executor is None, executor=executor)
    try:
        found: _T = await run()
    except DatabaseError as error:
        log.warning("database_unavailable", error=str(error)[:200])
        raise LongPollError(503, "unavailable", "The database is unavailable. Try again.") from error
    return found


def _parameters(request: HTTPScope) -> tuple[float, _Form]:
    given = dict(parse_qsl(request["query_string"].decode("latin-1"), keep_blank_values=True))
    unknown = given.keys() - {"wait", "render", "call_id", "hook"}
    if unknown:
        raise LongPollError(
            422,
            "unknown_parameter",
            f"`{min(unknown)[:60]}` is not a parameter of this route. Allowed: `wait`, `render`, `call_id`, `hook`.",
            min(unknown)[:60],
        )
    try:
        seconds = float(given.get("wait") or 0)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise LongPollError(
            422, "invalid_value", f"`wait` must be between 0 and {MAX_WAIT_SECONDS:g} seconds.", "wait"
        )
    return seconds, _form(given)


def _form(given: dict[str, str]) -> _Form:
    if given.get("hook"):
        host = HOSTS.get(given["hook"])
        if host is None:
            raise LongPollError(422, "invalid_value", f"`hook` must be one of {', '.join(HOSTS)}.", "hook")
        return _Form(host=host)
    shape = wire_shapes.shape_named(given.get("render", ""))
    if given.get("render") and shape is None:
        raise LongPollError(
            422, "invalid_value", f"`render` must be one of {', '.join(wire_shapes.SHAPES)}.", "render"
        )
    return _Form(shape, call_id=given.get("call_id", "").replace("\x00", ""))


def _token_of(request: HTTPScope) -> str:
    sent = [value for name, value in request["headers"] if name.lower() == b"authorization"]
    kind, _, token = (sent[0].decode("latin-1").strip() if len(sent) == 1 else "").partition(" ")
    if kind.lower() != "bearer":
        raise LongPollError(
            401, "missing_key", "Send a key of the project in the header `Authorization: Bearer lg_…`."
        )
    if not token.isascii() or not keys.looks_like_key(token.strip()):
        raise LongPollError(401, "unknown_key", UNKNOWN_KEY)
    return token.strip()


async def _send(
    send: ASGISendCallable, request_id: str, status: int, content_type: str, document: dict[str, object]
) -> None:
    body = orjson.dumps(document)
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", request_id.encode()),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="LoopGuard"'))
    if status == 503:
        headers.append((b"retry-after", str(random.randint(1, 3)).encode()))  # noqa: S311 (spreads the load)
    await send(
        HTTPResponseStartEvent(type="http.response.start", status=status, headers=headers, trailers=False)
    )
    await send(HTTPResponseBodyEvent(type="http.response.body", body=body, more_body=False))
