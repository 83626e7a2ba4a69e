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


async def relay(client: Client, response: httpcore.Response) -> None:
    """Send a response on. The upstream is read only as fast as the client reads."""
    await client.start(response.status, response_headers(response.headers))
    with cut_as_seen():
        async for part in response.aiter_stream():
            if part:
                await client.write(part)
    await client.end()


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


async def unpacked_parts(response: httpcore.Response) -> AsyncIterator[bytes]:
    """Yield the parts of a body without its encoding."""
    headers = {name.lower(): value.lower().strip() for name, value in response.headers}
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding == b"identity":
        async for part in response.aiter_stream():
            yield part
        return
    unpacker = zlib.decompressobj(47)  # gzip or zlib
    try:
        async for part in response.aiter_stream():
            if unpacked := unpacker.decompress(part):
                yield unpacked
    except zlib.error as error:
        raise StreamCut from error


async def drain(parts: AsyncIterator[bytes]) -> None:
    """Read what is left of a response, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, StreamCut, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in parts:
                pass
