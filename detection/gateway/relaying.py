"""Reads responses of the upstream, and sends them on byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

import httpcore

from detection.gateway.client import Client
from detection.gateway.errors import StreamCut
from detection.gateway.headers import response_headers

DRAIN_SECONDS: Final = 1.0
_UNPACKED_BYTES: Final = 64 * 1024


async def relay(client: Client, response: httpcore.Response, begun: BegunBody | None = None) -> None:
    """Send a response on. The upstream is read only as fast as the client reads.

    Parameters
    ----------
    begun
        The body, if its beginning was read already.
    """
    await client.start(response.status, response_headers(response.headers))
    client.has_answer = response.status >= 400  # SDKs do not always read errors to their end
    if begun is not None:
        await client.write(begun.start)
        if begun.is_cut:
            raise StreamCut
    parts = response.aiter_stream() if begun is None else begun.parts
    with cut_as_seen():
        async for part in parts:
            if part:
                await client.write(part)
    await client.end()


class BegunBody:
    """A body whose beginning was read.

    Attributes
    ----------
    start
        What was read.
    parts
        The rest.
    is_cut
        Whether the connection failed before the end.
    """

    def __init__(self, response: httpcore.Response) -> None:
        self.start, self.parts, self.is_cut = b"", response.aiter_stream(), False

    async def read(self, size: int) -> bytes:
        """Read at least this many bytes, fewer at the end."""
        try:
            with cut_as_seen():
                async for part in self.parts:
                    self.start += part
                    if len(self.start) >= size:
                        break
        except StreamCut:
            self.is_cut = True
        return self.start


@contextlib.contextmanager
def cut_as_seen() -> Iterator[None]:
    """Turn a failed connection to the upstream into `StreamCut`."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        raise StreamCut from error


def kind_of(response: httpcore.Response) -> str | None:
    """Return whether a response is a `stream` or a `document`; None for anything that is not guarded."""
    headers = {name.lower(): value.lower() for name, value in response.headers}
    if headers.get(b"content-encoding", b"identity").strip() not in (b"identity", b"gzip", b"deflate"):
        return None
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip()
    if media_type == b"text/event-stream":
        return "stream"
    return "document" if media_type == b"application/json" else None


def unpacked_parts(response: httpcore.Response) -> AsyncIterator[bytes]:
    """Return the parts of a body without its encoding."""
    headers = {name.lower(): value.lower().strip() for name, value in response.headers}
    if headers.get(b"content-encoding", b"identity") == b"identity":
        return aiter(response.aiter_stream())
    return _unpacked(response)


async def _unpacked(response: httpcore.Response) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(47)  # gzip or zlib
    try:
        async for part in response.aiter_stream():
            unpacked = unpacker.decompress(part, _UNPACKED_BYTES)
            while unpacked:
                yield unpacked
                await asyncio.sleep(0)  # a kilobyte may unpack to a megabyte, and others are waiting
                # Also without a tail, what is unpacked already may wait in the unpacker.
                unpacked = unpacker.decompress(unpacker.unconsumed_tail, _UNPACKED_BYTES)
    except zlib.error as error:
        raise StreamCut from error


async def drain(parts: AsyncIterator[bytes]) -> None:
    """Read what is left of a response, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, StreamCut, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in parts:
                pass
