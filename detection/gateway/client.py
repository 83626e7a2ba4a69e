"""The client side of an exchange: reads the request body, sends the response, and notices a disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Final

import orjson
from asgiref.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPRequestEvent,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)

from detection.gateway.errors import ClientGone, GatewayError
from detection.gateway.headers import SHIELD, Headers, RequestHeaders
from detection.web.unfinished_bodies import BodyTimeout, UnfinishedBodies

ERROR_SECONDS: Final = 1.0
"""Seconds to send the error at the end of a stream. A client that does not read by then sees its connection closed."""


class Client:
    """One request of an agent.

    Attributes
    ----------
    has_started
        Whether the response has begun.
    has_answer
        Whether the client has received everything of the response that matters to it.
    has_body
        Whether the request has a body.
    is_denied
        Whether its key or token has since been revoked, or its project archived.
    error_event
        Returns an error as the event of a stream, while what the client has got of one ends with an event.
    """

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self.method = scope["method"].upper().encode("latin-1")
        self.headers = RequestHeaders(scope["headers"])
        self.query = scope["query_string"]
        self.request_id = f"req_{secrets.token_hex(12)}"
        self.has_started = False
        self.has_answer = False
        self.is_denied = False
        self.error_event: Callable[[dict[str, object]], bytes] | None = None
        self.has_body = b"transfer-encoding" in self.headers.values or self.headers.text(
            "content-length"
        ) not in ("", "0")
        self.body_read = asyncio.Event()
        self._receive, self._send = receive, send
        self._state = scope.setdefault("state", {})

    def note_granted(self) -> None:
        """Tell the server that the request comes with a right, so that its client may take its time to read."""
        self._state["is_granted"] = True

    async def body(
        self, bodies: UnfinishedBodies, owner: str, *, is_held: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raises `ClientGone`, and `GatewayError` 408 for one that comes too slowly.

        Parameters
        ----------
        owner
            The key whose limits of unfinished bodies apply.
        is_held
            Whether the parts stay in memory.
        """
        with bodies.reading(owner) as reading:
            while True:
                try:
                    event = await reading.part(self._receive())
                except BodyTimeout:
                    raise GatewayError(408, "body_timeout", "The body did not arrive in time.") from None
                if event["type"] != "http.request":
                    raise ClientGone
                message: HTTPRequestEvent = event
                if message["body"]:
                    size = len(message["body"])
                    reading.arrived(size, held=size if is_held else 0)
                    yield message["body"]
                if not message["more_body"]:
                    self.body_read.set()
                    return

    async def until_gone(self) -> None:
        """Wait until the client closes its connection."""
        await self.body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the response."""
        self.has_started = True
        sent = [*headers, *SHIELD]
        await self._send(
            HTTPResponseStartEvent(type="http.response.start", status=status, headers=sent, trailers=False)
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the body. Waits while the client does not read."""
        await self._send(HTTPResponseBodyEvent(type="http.response.body", body=data, more_body=True))

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._send(HTTPResponseBodyEvent(type="http.response.body", body=data, more_body=False))
        self.has_answer = True

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def respond_error(self, error: GatewayError) -> None:
        """Send an error of the gateway itself: as the response, or as the end of a stream that has begun."""
        document = error.document(self.request_id)
        if self.has_started:
            if self.error_event is not None and not self.has_answer:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ERROR_SECONDS):
                        await self.end(self.error_event(document))
            return  # the connection is closed without the end of a response
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
            (b"x-request-id", self.request_id.encode()),
            *error.headers,
        ]
        await self.respond(error.status, headers, orjson.dumps(document))
