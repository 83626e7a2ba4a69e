"""Reads request bodies in the event loop: an endless one costs no thread; see `detection.web.unfinished_bodies`."""

from __future__ import annotations

from typing import Any, Final

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from detection.api.long_texts import MAX_RAW_BYTES, MAX_STRING_BYTES, LongTextCutter
from detection.api.request_bodies import MAX_BODY_BYTES
from detection.web.unfinished_bodies import UnfinishedBodies, UnfinishedBody

_WHOLE: Final = 512 * 1024
"""Bodies up to this size are read in one piece: each part would wait for the interpreter's lock, behind a batch.
What has arrived of them is not known, so all unfinished ones may hold 128 MiB beside those that are read in parts."""
_EMPTY_PARTS_AT_END: Final = 1
"""Granian says nothing of an error within a body: an empty part more comes at its end. So it does after trailers, which
are not accepted therefore."""


class BodyIncomplete(Exception):
    """The body ended before its end, or has a chunk that is none."""


class BodyReader:
    """Reads bodies, in one event loop. They count together, because no key is checked before they are read."""

    def __init__(self) -> None:
        self._unfinished = UnfinishedBodies()

    async def read(
        self,
        protocol: Any,
        length: str | None,
        cutter: LongTextCutter | None = None,
        *,
        limit: int = MAX_BODY_BYTES,
    ) -> bytes:
        """Return the body.

        Parameters
        ----------
        protocol
            Granian's protocol object.
        length
            The header `Content-Length`; None if there is none. A body above `limit` is not read if its length
            is known, else up to one byte more than that: the application rejects both.
        cutter
            Cuts long strings as they arrive. The limit then is that of the rest, and the body may have `MAX_RAW_BYTES`.
        limit
            Bytes of the longest body.

        Raises
        ------
        BodyTimeout
            If the body is too slow, or the oldest of too many.
        BodyIncomplete
            If it is not the whole body.
        """
        size = int(length) if length is not None and length.isascii() and length.isdigit() else None
        if size is not None and size > (limit if cutter is None else MAX_RAW_BYTES):
            return b""
        longest = _WHOLE if cutter is None else MAX_STRING_BYTES
        with self._unfinished.reading() as reading:
            if size is not None and size <= longest:
                reading.arrived(size)  # nobody sees how much has arrived: the body has its whole time at once
                try:
                    body: bytes = await reading.part(protocol())
                except ProtocolClosed:
                    raise BodyIncomplete from None
                return body
            return await _read_parts(protocol, reading, cutter, limit)


async def _read_parts(
    protocol: Any, reading: UnfinishedBody, cutter: LongTextCutter | None, limit: int
) -> bytes:
    arriving, parts, arrived, empty_parts = aiter(protocol), [], 0, 0
    while True:
        try:
            part = await reading.part(anext(arriving))
        except StopAsyncIteration:
            if empty_parts > _EMPTY_PARTS_AT_END:
                raise BodyIncomplete from None
            break
        size = len(part)
        empty_parts = 0 if part else empty_parts + 1
        arrived += size
        if cutter is not None:
            part = cutter.feed(part)
        parts.append(part)
        reading.arrived(size, held=len(part))
        if reading.held > limit or arrived > MAX_RAW_BYTES:
            break
    if cutter is not None:
        parts.append(cutter.finish())
    return b"".join(parts)
