"""Reads the body of a guarded request into memory, within the limits of the request and of the process."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from detection.gateway.client import Client
from detection.gateway.errors import GatewayError
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
    body = bytearray()
    taken = 0
    try:
        async for part in client.body(bodies, owner, is_held=True):
            if len(body) + len(part) > taken:
                step = max(len(part), min(taken, _LARGEST_STEP) or _FIRST_STEP)
                await budget.take(step)
                taken += step
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
        yield _unpacked(bytes(body), client.headers.text("content-encoding").lower())
    finally:
        if taken:
            await budget.give_back(taken)


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise GatewayError(415, "unsupported_encoding", "`Content-Encoding` must be `gzip` or absent.")
    unpacker = zlib.decompressobj(31)
    try:
        unpacked = unpacker.decompress(body, MAX_BODY_BYTES)
    except zlib.error:
        raise GatewayError(400, "invalid_body", "The body is not valid gzip.") from None
    if unpacker.unconsumed_tail:
        raise _too_large()
    if not unpacker.eof:
        raise GatewayError(400, "invalid_body", "The gzip body ends early.")
    return unpacked


def _too_large() -> GatewayError:
    return GatewayError(413, "body_too_large", f"The body must have at most {MAX_BODY_BYTES:,} bytes.")
