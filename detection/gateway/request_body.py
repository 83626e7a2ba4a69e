"""Reads the body of a guarded request into memory, within the limits of the request and of the process."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson

from detection.gateway.client import Client
from detection.gateway.errors import GatewayError
from detection.gateway.json_size import MAX_VALUES, has_too_many_values
from detection.services.ingestion.message_guard import MAX_MESSAGES
from detection.web.unfinished_bodies import UnfinishedBodies

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Of a request that is guarded; providers accept no larger ones."""
MAX_BUFFERED_BYTES: Final = 256 * 1024 * 1024
"""Of all bodies that are in memory at a time."""
BUFFER_WAIT_SECONDS: Final = 20.0
_FIRST_STEP: Final = 64 * 1024
_LARGEST_STEP: Final = 1024 * 1024


class BodyBudget:
    """The memory for bodies that are read before they are forwarded."""

    def __init__(self, total: int = MAX_BUFFERED_BYTES) -> None:
        self._free = total
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Wait for memory; raises `GatewayError` 503 after `BUFFER_WAIT_SECONDS`."""
        async with self._changed:
            try:
                async with asyncio.timeout(BUFFER_WAIT_SECONDS):
                    await self._changed.wait_for(lambda: self._free >= size)
            except TimeoutError:
                raise GatewayError(
                    503,
                    "busy",
                    "Too many large requests at a time. Retry in a moment.",
                    [(b"retry-after", b"3")],
                ) from None
            self._free -= size

    async def give_back(self, size: int) -> None:
        """Free memory."""
        async with self._changed:
            self._free += size
            self._changed.notify_all()


class _Taken:
    """What one request has taken of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._size = budget, 0

    async def cover(self, size: int) -> None:
        """Take memory until so many bytes are covered, in growing steps."""
        if size > self._size:
            step = max(size - self._size, min(self._size, _LARGEST_STEP) or _FIRST_STEP)
            await self._budget.take(step)
            self._size += step

    async def give_back(self) -> None:
        """Free it."""
        if self._size:
            await self._budget.give_back(self._size)


@asynccontextmanager
async def request_body(
    client: Client, bodies: UnfinishedBodies, budget: BodyBudget, owner: str
) -> AsyncIterator[bytes]:
    """Read and unpack a body. Its memory is released at the end of the block.

    Raises
    ------
    GatewayError
        400, 413 or 415 for a body that is not accepted, 408 and 503 for one that waits too long.
    """
    parts: list[bytes] = []
    size = 0
    taken = _Taken(budget)
    try:
        async for part in client.body(bodies, owner, is_held=True):
            size += len(part)
            await taken.cover(size)
            parts.append(part)
            if size > MAX_BODY_BYTES:
                raise _too_large()
        yield await _unpacked(b"".join(parts), client.headers.text("content-encoding").lower(), taken)
    finally:
        await taken.give_back()


async def _unpacked(body: bytes, encoding: str, taken: _Taken) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise GatewayError(415, "unsupported_encoding", "`Content-Encoding` must be `gzip` or absent.")
    unpacker = zlib.decompressobj(31)
    unpacked, rest = bytearray(), body
    while not unpacker.eof:
        # In steps, because other requests wait for each of them; and a small body may become a large one.
        await taken.cover(len(body) + len(unpacked) + _LARGEST_STEP)
        try:
            part = unpacker.decompress(rest, _LARGEST_STEP)
        except zlib.error:
            raise GatewayError(400, "invalid_body", "The body is not valid gzip.") from None
        rest = unpacker.unconsumed_tail
        if not part and not rest and not unpacker.eof:
            raise GatewayError(400, "invalid_body", "The gzip body ends early.")
        unpacked += part
        if len(unpacked) > MAX_BODY_BYTES:
            raise _too_large()
        await asyncio.sleep(0)
    return bytes(unpacked)


def parsed_request(body: bytes) -> Any:
    """Return the document in a body; None if it is not JSON.

    Raises
    ------
    GatewayError
        413 if it has too many values.
    """
    if has_too_many_values(body):
        detail = f"The body must have at most {MAX_VALUES:,} JSON values and keys."
        raise GatewayError(413, "too_many_values", detail)
    try:
        return orjson.loads(body)
    except ValueError:
        return None


def check_number(messages: Sequence[Any]) -> None:
    """Check how many messages a conversation has.

    Raises
    ------
    GatewayError
        413 for too many.
    """
    if len(messages) > MAX_MESSAGES:
        detail = f"A request can have at most {MAX_MESSAGES:,} messages."
        raise GatewayError(413, "too_many_messages", detail)


def _too_large() -> GatewayError:
    return GatewayError(413, "body_too_large", f"The body must have at most {MAX_BODY_BYTES:,} bytes.")
