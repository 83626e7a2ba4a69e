"""The socket of a live page. It sends hints that something changed, never the data.

Only a member opens it; it is closed within a second once the sign-in or the membership ends. One task sends all
frames, so a slow reader delays nobody, and its queue is bounded. Losing a hint is harmless: pages fetch by their own
cursor, and also without a hint from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import orjson
import structlog
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.layers import get_channel_layer
from django.conf import settings
from redis.exceptions import RedisError

from detection.consumers.denials import deny
from detection.consumers.frame_queue import FrameQueue
from detection.models import Membership
from detection.selectors import changes
from detection.services.accounts import second_factor
from detection.stream.hints import held_group, project_group
from detection.web.access_watch import NOT_A_MEMBER, ROLE_CHANGED, MemberAccess, access_watch

log = structlog.get_logger(__name__)
SIGNED_OUT, NOT_FOUND, INVALID_MESSAGE, TOO_LARGE, RECONNECT = 4401, 4404, 1008, 1009, 1012
NOT_SIGNED_IN = 401, "not_signed_in", "Sign in first."
NOT_THEIRS = 403, "not_a_member", "The project does not exist, or you are not a member of it."
BATCH_SECONDS = 0.15
BEAT_SECONDS = 10.0
STALLED_SECONDS = 30.0
BROKER_TIMEOUT_SECONDS = 2.0
MAX_MESSAGE_CHARACTERS = 512
MAX_OTHERS = 50
"""Other projects of the person whose held calls reach the page at once."""
MAX_MESSAGES, MESSAGES_PER_SECONDS = 20, 10.0
TOPICS = frozenset(("session", "incident", "attempt", "approval", "held", "policy", "containment"))


class LiveConsumer(AsyncWebsocketConsumer):
    """An open live page.

    Server frames: ``ready`` with the project's cursor, ``hints``, ``resync``, ``beat`` (with ``broker``: whether hints
    can arrive) and ``pong``. Client frames: ``{"type": "ping"}`` and
    ``{"type": "watch", "topics": [...], "session": ""}``, which filters the hints.
    """

    # The channel layer is used below: here, an unavailable broker would reject the socket itself.
    channel_layer_alias = None

    async def connect(self) -> None:
        """Accept the socket of a member; reject others with 401 (not signed in) or 403."""
        self._tasks: list[asyncio.Task[None]] = []
        self._queue = FrameQueue()
        self._topics, self._session = TOPICS, ""
        self._heard: list[float] = []
        self._broker_is_up, self._channel, self._echo = False, "", asyncio.Event()
        project = await self._membership()
        if project is None:
            await deny(
                self.base_send, *(NOT_THEIRS if self.scope["user"].is_authenticated else NOT_SIGNED_IN)
            )
            raise StopConsumer
        await self.accept()
        self._queue.add_frame({"type": "ready", "cursor": project["cursor"]})
        self._main = asyncio.current_task()
        listening = self._listen(project_group(project["id"]), *map(held_group, project["others"]))
        for work in (self._send_frames(), listening, self._watch(project["access"]), self._beat()):
            self._tasks.append(asyncio.create_task(self._guarded(work)))

    async def disconnect(self, code: int) -> None:
        """End the tasks of this socket."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the socket until it is closed or its reader has stalled for too long."""
        self._tasks, self._stalled = [], False
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if not self._stalled:
                raise
        finally:
            for task in self._tasks:
                task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Handle a message of the page, or close the socket."""
        now = time.monotonic()
        self._heard = [*(at for at in self._heard if now - at < MESSAGES_PER_SECONDS), now][
            -MAX_MESSAGES - 1 :
        ]
        if text_data is not None and len(text_data) > MAX_MESSAGE_CHARACTERS:
            await self._end(TOO_LARGE)
        elif len(self._heard) > MAX_MESSAGES or not self._parse(text_data):
            await self._end(INVALID_MESSAGE)

    def _parse(self, text: str | None) -> bool:
        try:
            message = orjson.loads(text or "")
        except orjson.JSONDecodeError:
            return False
        match message:
            case {"type": "ping", **rest} if not rest:
                self._queue.add_frame({"type": "pong"})
                return True
            case {"type": "watch", "topics": [*topics], **rest} if rest.keys() <= {"session"}:
                session = rest.get("session", "")
                if not isinstance(session, str) or not all(isinstance(name, str) for name in topics):
                    return False
                self._topics, self._session = TOPICS & set(topics), session
                return TOPICS.issuperset(topics)
            case _:
                return False

    async def _listen(self, *groups: str) -> None:
        """Receive hints from the broker while the socket is open, across outages of the broker."""
        while True:
            layer = get_channel_layer()
            try:
                async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                    self._channel = await layer.new_channel()
                    await layer.group_add(groups[0], self._channel)
                await self._join(layer, groups[1:])
                self._note_broker(is_up=True)
                while True:
                    await self._take(await layer.receive(self._channel))
            except (OSError, TimeoutError, RedisError) as error:
                log.info("live_broker_unreachable", error=str(error)[:200])
                self._note_broker(is_up=False)
            finally:
                if channel := self._channel:
                    self._channel = ""
                    with contextlib.suppress(OSError, TimeoutError, RedisError):
                        async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                            await asyncio.gather(*(layer.group_discard(group, channel) for group in groups))
            await asyncio.sleep(random.uniform(1.0, 3.0))  # noqa: S311 (spreads the load, keeps no secret)

    async def _join(self, layer: Any, groups: Sequence[str]) -> None:
        """Join the groups of other projects; without them the page asks from time to time."""
        with contextlib.suppress(OSError, TimeoutError, RedisError):
            async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                await asyncio.gather(*(layer.group_add(group, self._channel) for group in groups))

    async def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "echo":
            self._echo.set()
            return
        for hint in message.get("hints", ()):  # a later version may send others
            is_other = self._session and hint["topic"] == "session" and hint["id"] not in ("", self._session)
            if hint["topic"] in self._topics and not is_other:
                self._queue.add_hint(hint)

    async def _send_frames(self) -> None:
        """Send frames in batches; nothing else sends after the handshake."""
        while True:
            await self._queue.wait()
            frames = self._queue.take()
            try:
                for frame in frames:
                    await asyncio.wait_for(self.send(text_data=orjson.dumps(frame).decode()), STALLED_SECONDS)
            except TimeoutError:
                log.info("live_reader_stalled")
                self._stalled = True
                if self._main is not None:
                    self._main.cancel()
                return
            except OSError:
                return  # The page has gone, and its disconnect follows.
            await asyncio.sleep(BATCH_SECONDS)

    async def _watch(self, access: MemberAccess) -> None:
        """Close the socket when the sign-in or membership has ended; after a change of role, the page reconnects."""
        reasons: asyncio.Queue[str] = asyncio.Queue()
        with access_watch.watching(access, reasons.put_nowait):
            reason = await reasons.get()
        await self._end({NOT_A_MEMBER: NOT_FOUND, ROLE_CHANGED: RECONNECT}.get(reason, SIGNED_OUT))

    async def _beat(self) -> None:
        """Send a message to this socket through the broker, to check that hints can arrive."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if self._channel:
                self._echo.clear()
                try:
                    async with asyncio.timeout(BROKER_TIMEOUT_SECONDS):
                        await get_channel_layer().send(self._channel, {"type": "echo"})
                        await self._echo.wait()
                    self._note_broker(is_up=True)
                except (OSError, TimeoutError, RedisError):
                    self._note_broker(is_up=False)
            self._queue.add_frame(self._beat_frame())

    def _note_broker(self, *, is_up: bool) -> None:
        if is_up != self._broker_is_up:
            self._broker_is_up = is_up
            if is_up:
                self._queue.request_resync()  # hints may have been lost meanwhile
            else:
                self._queue.add_frame(self._beat_frame())

    def _beat_frame(self) -> dict[str, Any]:
        return {"type": "beat", "broker": self._broker_is_up}

    @database_sync_to_async
    def _membership(self) -> dict[str, Any] | None:
        """Return access and cursor of the project, and the person's other ones, if the user is an active member.

        Three queries.
        """
        user = self.scope["user"]
        if not user.is_authenticated or not user.is_active:
            return None
        slug = self.scope["url_route"]["kwargs"]["project"]
        rows = Membership.objects.filter(project__slug=slug, user_id=user.pk)
        found = rows.values_list("project_id", "role", "project__requires_second_factor").first()
        session = self.scope["session"]
        has_factor = bool(session.get(second_factor.SESSION_KEY))
        if found is None or ((found[2] or settings.REQUIRE_SECOND_FACTOR) and not has_factor):
            return None
        access = MemberAccess(session.session_key or "", user.pk, user.password, *found[:2], has_factor)
        others = Membership.objects.filter(user_id=user.pk, project__archived_at=None)
        others = others.exclude(project_id=found[0]).order_by("project__name")
        if not has_factor:
            others = others.filter(project__requires_second_factor=False)
        return {
            "id": found[0],
            "access": access,
            "cursor": str(changes.horizon()),
            "others": [*others.values_list("project_id", flat=True)[:MAX_OTHERS]],
        }

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task of the socket; an error closes the socket, and the page reconnects."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("live_socket_failed")
            await self._end(1011)

    async def _end(self, code: int) -> None:
        # A stalled reader cannot receive the closing frame either.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.close(code=code), BROKER_TIMEOUT_SECONDS)
