"""Sends a response of the upstream on, byte by byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpcore

from detection.gateway.client import Client
from detection.gateway.errors import StreamCut
from detection.gateway.headers import response_headers


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
