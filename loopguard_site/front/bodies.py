"""Reads request bodies in the event loop: a body that never ends costs no thread.

A body may take `GRACE_SECONDS`, and longer while it arrives at `MIN_BYTES_PER_SECOND`. At most `MAX_UNFINISHED` bodies and
`MAX_UNFINISHED_BYTES` may be unfinished; beyond that, the oldest one is given up.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from detection.api.long_texts import MAX_RAW_BYTES, MAX_STRING_BYTES, LongTextCutter
from detection.api.request_bodies import MAX_BODY_BYTES

GRACE_SECONDS: Final = 5.0
MIN_BYTES_PER_SECOND: Final = 64 * 1024
MAX_UNFINISHED: Final = 256
MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
_WHOLE: Final = 512 * 1024
"""Bodies up to this size are read in one piece: each part of one would wait for the interpreter's lock, behind a batch."""


class BodyTimeout(Exception):
    """The body did not arrive in time."""


class _Reading:
    """One unfinished body."""

    __slots__ = ("is_over", "received", "task", "timer")

    def __init__(self, task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, whole_bytes: int) -> None:
        self.task = task
        self.timer = loop.call_later(GRACE_SECONDS + whole_bytes / MIN_BYTES_PER_SECOND, self.give_up)
        self.received = 0
        self.is_over = False

    def give_up(self) -> None:
        self.is_over = True
        self.task.cancel()


class BodyReader:
    """Reads bodies; to be used in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unfinished: dict[_Reading, None] = {}  # in the order of their start
        self._received = 0

    async def read(self, protocol: Any, length: str | None, cutter: LongTextCutter | None = None) -> bytes:
        """Return the body.

        Parameters
        ----------
        protocol
            Granian's protocol object.
        length
            The header `Content-Length`; None if there is none. A body above `MAX_BODY_BYTES` is not read if its length
            is known, else up to one byte more than that: the application rejects both.
        cutter
            Cuts long strings as they arrive. The limit then is that of the rest, and the body may have `MAX_RAW_BYTES`.

        Raises
        ------
        BodyTimeout
            If the body is too slow, or the oldest of too many.
        """
        size = int(length) if length is not None and length.isascii() and length.isdigit() else None
        if size is not None and size > (MAX_BODY_BYTES if cutter is None else MAX_RAW_BYTES):
            return b""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - says to the type checker that this runs in a loop
        longest = _WHOLE if cutter is None else MAX_STRING_BYTES
        whole_bytes = size if size is not None and size <= longest else 0
        reading = _Reading(task, self._loop, whole_bytes)
        self._unfinished[reading] = None
        if len(self._unfinished) > MAX_UNFINISHED:
            self._give_up_oldest()
        try:
            if whole_bytes:
                body: bytes = await protocol()
                return body
            return await self._read_parts(protocol, reading, cutter)
        except asyncio.CancelledError:
            if reading.is_over:
                raise BodyTimeout from None
            raise
        finally:
            reading.timer.cancel()
            self._unfinished.pop(reading, None)
            self._received -= reading.received

    async def _read_parts(self, protocol: Any, reading: _Reading, cutter: LongTextCutter | None) -> bytes:
        started, parts, arrived = self._loop.time(), [], 0
        async for part in protocol:
            arrived += len(part)
            if cutter is not None:
                part = cutter.feed(part)
            parts.append(part)
            reading.received += len(part)
            self._received += len(part)
            if reading.received > MAX_BODY_BYTES or arrived > MAX_RAW_BYTES:
                break
            if self._received > MAX_UNFINISHED_BYTES:
                self._give_up_oldest()
            reading.timer.cancel()
            ends_at = started + GRACE_SECONDS + arrived / MIN_BYTES_PER_SECOND
            reading.timer = self._loop.call_at(ends_at, reading.give_up)
        if cutter is not None:
            parts.append(cutter.finish())
        return b"".join(parts)

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self._unfinished))
        del self._unfinished[oldest]
        oldest.give_up()
