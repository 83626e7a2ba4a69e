"""Waiting for the answer to an approval: `GET /api/v1/approvals/{id}?wait=30`, held open without a worker thread.

One task of the process looks for closed approvals once a second, with one query however many agents wait; the broker
only makes it quicker. What an approval is and who may see it is the services' business.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import secrets
import weakref
from collections import defaultdict
from http import HTTPStatus
from typing import Any, cast
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
from django.utils import timezone
from redis.exceptions import RedisError

from detection.engine import messages
from detection.models import KeyScope
from detection.selectors.approvals import closed_among
from detection.services import keys
from detection.services.approvals import decisions
from detection.services.approvals.documents import approval_document
from detection.services.errors import ServiceError
from detection.stream.hints import approval_group

log = structlog.get_logger(__name__)
PATH = re.compile(r"/api/v1/approvals/(apr_[0-9a-z]{1,40})")
MAX_WAIT_SECONDS = 60.0
LOOK_SECONDS = 1.0
MAX_WAITERS = 5_000
BROKER_PATIENCE_SECONDS = 1.0


class Refused(Exception):
    """A refusal on its way to the agent: status, stable code, sentence, field."""

    def __init__(self, status: int, code: str, detail: str, path: str = "") -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.path = status, code, detail, path


class WaitingRoom:
    """Everybody in this process who waits for an approval.

    Wakes the agents of an approval that the broker says was closed, and of every approval that is found closed by the
    look that is taken each second for as long as anybody waits.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._tasks: list[asyncio.Task[None]] = []
        self._channel = ""
        self._joined: set[str] = set()

    def __len__(self) -> int:
        return sum(len(events) for events in self._waiting.values())

    @contextlib.asynccontextmanager
    async def place(self, public_id: str) -> Any:
        """Give an event that is set when the approval may have been closed."""
        event = asyncio.Event()
        self._waiting[public_id].add(event)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._listen())]
        elif self._channel:
            await self._join(public_id)
        try:
            yield event
        finally:
            self._waiting[public_id].discard(event)
            if not self._waiting[public_id]:
                del self._waiting[public_id]
                await self._leave(public_id)
            if not self._waiting:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []

    def _wake(self, public_id: str) -> None:
        for event in self._waiting.get(public_id, ()):
            event.set()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for public_id in await database_sync_to_async(closed_among)([*self._waiting], timezone.now()):
                    self._wake(public_id)
            except DatabaseError as error:
                log.info("approval_look_failed", error=str(error)[:200])

    async def _listen(self) -> None:
        """Hear of closed approvals at once, for as long as there is a broker."""
        layer = get_channel_layer()
        while True:
            try:
                async with asyncio.timeout(BROKER_PATIENCE_SECONDS):
                    channel = await layer.new_channel()
                self._channel, self._joined = channel, set()
                for public_id in [*self._waiting]:
                    await self._join(public_id)
                while True:
                    message = await layer.receive(channel)
                    self._wake(message["id"])
            except (OSError, TimeoutError, RedisError) as error:
                log.info("approval_broker_unreachable", error=str(error)[:200])
            finally:
                for public_id in [*self._joined]:
                    await self._leave(public_id)
                self._channel = ""
            await asyncio.sleep(random.uniform(1.0, 3.0))  # noqa: S311 (spreads the load, keeps no secret)

    async def _join(self, public_id: str) -> None:
        if public_id in self._joined:
            return
        with contextlib.suppress(OSError, TimeoutError, RedisError):
            async with asyncio.timeout(BROKER_PATIENCE_SECONDS):
                await get_channel_layer().group_add(approval_group(public_id), self._channel)
                self._joined.add(public_id)

    async def _leave(self, public_id: str) -> None:
        if public_id not in self._joined:
            return
        self._joined.discard(public_id)
        with contextlib.suppress(OSError, TimeoutError, RedisError, asyncio.CancelledError):
            async with asyncio.timeout(BROKER_PATIENCE_SECONDS):
                await get_channel_layer().group_discard(approval_group(public_id), self._channel)


_rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WaitingRoom] = weakref.WeakKeyDictionary()


def room() -> WaitingRoom:
    """The waiting room of the running event loop."""
    return _rooms.setdefault(asyncio.get_running_loop(), WaitingRoom())


class ApprovalWait:
    """ASGI middleware that serves the path of one approval and passes everything else on."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer as soon as the approval is closed, its time is over, or the caller has waited long enough."""
        found = PATH.fullmatch(cast("HTTPScope", scope)["path"])
        if found is None or cast("HTTPScope", scope)["method"] != "GET":
            await self._application(scope, receive, send)
            return
        request = cast("HTTPScope", scope)
        request_id = f"req_{secrets.token_hex(12)}"
        gone = asyncio.create_task(_until_gone(receive))
        work = asyncio.create_task(_answer(request, found[1]))
        try:
            await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return
            await _send(send, request_id, 200, "application/json", work.result())
        except Refused as refused:
            document = {
                "type": f"/api/v1/docs#{refused.code}",
                "title": HTTPStatus(refused.status).phrase,
                "status": refused.status,
                "code": refused.code,
                "detail": refused.detail,
                "request_id": request_id,
            } | ({"path": refused.path} if refused.path else {})
            await _send(send, request_id, refused.status, "application/problem+json", document)
        finally:
            for task in (gone, work):
                task.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)


async def _until_gone(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(request: HTTPScope, public_id: str) -> dict[str, Any]:
    wait_seconds, shape = _parameters(request)
    project_id = await database_sync_to_async(_project_of)(request)
    document, seconds_left = await _read(project_id, public_id, shape)
    if document["state"] != "open" or wait_seconds <= 0:
        return document
    waiting = room()
    if len(waiting) >= MAX_WAITERS:
        raise Refused(503, "too_many_waiting", "Too many agents wait here; come back in a moment.")
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_seconds
    due = loop.time() + seconds_left
    async with waiting.place(public_id) as event:
        while document["state"] == "open" and loop.time() < until:
            # It may have been closed between the look above and taking the place, so look before each sleep.
            document, seconds_left = await _read(project_id, public_id, shape)
            due = loop.time() + seconds_left
            if document["state"] != "open":
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, due + 0.005)):
                    await event.wait()
            event.clear()
        if document["state"] == "open":
            document, _ = await _read(project_id, public_id, shape)
    return document


async def _read(
    project_id: int, public_id: str, shape: messages.Shape | None
) -> tuple[dict[str, Any], float]:
    def read() -> tuple[dict[str, Any], float]:
        approval = decisions.find(project_id, public_id)
        return approval_document(approval, shape), (approval.deadline - timezone.now()).total_seconds()

    try:
        found: tuple[dict[str, Any], float] = await database_sync_to_async(read)()
    except ServiceError as error:
        raise Refused(error.status, error.code, error.detail, error.field) from error
    except DatabaseError as error:
        log.warning("database_unavailable", error=str(error)[:200])
        raise Refused(503, "unavailable", "The database cannot answer right now; try again.") from error
    return found


def _parameters(request: HTTPScope) -> tuple[float, messages.Shape | None]:
    given = dict(parse_qsl(request["query_string"].decode("latin-1"), keep_blank_values=True))
    unknown = given.keys() - {"wait", "render"}
    if unknown:
        raise Refused(422, "unknown_parameter", "There are: wait, render.", min(unknown)[:60])
    shape = messages.shape_named(given.get("render", ""))
    if given.get("render") and shape is None:
        raise Refused(
            422, "invalid_value", f"`render` must be one of {', '.join(messages.SHAPES)}.", "render"
        )
    try:
        seconds = float(given.get("wait") or 0)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise Refused(422, "invalid_value", f"Seconds to wait are 0 to {MAX_WAIT_SECONDS:g}.", "wait")
    return seconds, shape


def _project_of(request: HTTPScope) -> int:
    sent = [value for name, value in request["headers"] if name.lower() == b"authorization"]
    kind, _, token = (sent[0].decode("latin-1").strip() if len(sent) == 1 else "").partition(" ")
    if kind.lower() != "bearer":
        raise Refused(401, "missing_key", "Send a key of the project: Authorization: Bearer lg_…")
    principal = keys.authenticate(token.strip()) if token.isascii() else None
    if principal is None:
        raise Refused(401, "unknown_key", "This key is unknown, revoked or expired.")
    if KeyScope.GUARD not in principal.scopes:
        raise Refused(403, "missing_scope", "This key lacks the scope guard.")
    return principal.project_id


async def _send(
    send: ASGISendCallable, request_id: str, status: int, content_type: str, document: dict[str, Any]
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
