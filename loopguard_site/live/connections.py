"""The connections of `live`: those that wait for their client are bounded in number, time and memory."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from loopguard_site.host_header import names_a_host

CLIENT_SECONDS: Final = 10.0
"""How long a client may keep a connection waiting: for the head of a request, and to take its response. As for the
bodies of requests, `detection.web.unfinished_bodies`."""
BODY_REST_SECONDS: Final = 60.0
"""The same for a body that is still sent after the response, so that the client comes to read the response."""
MAX_HEAD_BYTES: Final = 32 * 1024
"""Of a request line with headers; those of browsers and agents have at most half as much."""
TICK_SECONDS: Final = 0.05
CLOSED_AT_ONCE: Final = 100
"""Connections that are closed in one go, which takes some 5 ms."""
MAX_PIPELINED: Final = 8
"""Requests that wait on one connection; hardly a client sends one before it has the response to the last."""
_HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class RequestRejected(Exception):
    """The request gets 400."""


class WaitingConnections:
    """The connections that wait for their client, in the order in which they began to.

    Parameters
    ----------
    most
        Maximum number; one more closes the oldest one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._until: dict[LiveConnection, float] = {}
        self._is_ticking = False

    def __contains__(self, connection: LiveConnection) -> bool:
        return connection in self._until

    def start(self, connection: LiveConnection, seconds: float) -> None:
        """Close a connection after so many seconds, or as the oldest of too many."""
        self._until[connection] = connection.loop.time() + seconds
        if len(self._until) > self._most:
            self._close(next(iter(self._until)))
        if not self._is_ticking:
            self._is_ticking = True
            connection.loop.call_later(TICK_SECONDS, self._tick, connection.loop)

    def end(self, connection: LiveConnection) -> None:
        """Let a connection stay open."""
        self._until.pop(connection, None)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close those that have waited too long, a few at a time: thousands may have come at the same moment."""
        now = loop.time()
        due = (connection for connection, until in self._until.items() if until <= now)
        for connection in [*islice(due, CLOSED_AT_ONCE)]:
            self._close(connection)
        self._is_ticking = bool(self._until)
        if self._is_ticking:
            loop.call_later(TICK_SECONDS, self._tick, loop)

    def _close(self, connection: LiveConnection) -> None:
        self.end(connection)
        connection.transport.abort()  # closing it would wait until the client has read everything


class LiveConnection(HttpToolsProtocol):
    """A connection, until it becomes a socket.

    An application that knows the right of a request sets `scope["state"]["is_granted"]`: its client may take its time
    to read.

    Parameters
    ----------
    waiting
        Of this server.
    """

    def __init__(self, *arguments: Any, waiting: WaitingConnections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting = waiting
        self._head_bytes = 0
        self._reads_head = self._reads_body = self._has_left = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._has_left = True
        self._waiting.end(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; close the connection if its head is too large."""
        super().data_received(data)
        if self._reads_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()
        self._note()

    def on_message_begin(self) -> None:
        """Begin to read a head."""
        super().on_message_begin()
        self._reads_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Check what no application should have to check, and begin to respond."""
        hosts = [value.decode("latin-1") for name, value in self.headers if name == b"host"]
        if not names_a_host(hosts) or len(self.pipeline) >= MAX_PIPELINED:
            raise RequestRejected
        self._reads_head, self._reads_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self._reads_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """Wait for a client that does not read."""
        super().pause_writing()
        self._note()

    def resume_writing(self) -> None:
        """Continue with a client that reads."""
        super().resume_writing()
        self._note()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over: the server responds to the handshake next."""
        self._has_left = True
        self._waiting.end(self)
        super().handle_websocket_upgrade()

    def _note(self) -> None:
        """Start or end the wait for the client, after anything that has happened."""
        cycle: RequestResponseCycle | None = self.cycle
        responds = cycle is not None and not cycle.response_complete
        is_granted = cycle is not None and responds and cycle.scope["state"].get("is_granted", False)
        is_stuck = self.flow.write_paused and not is_granted
        waits = not self._has_left and (is_stuck or not responds)
        if not waits:
            self._waiting.end(self)
        elif self not in self._waiting:
            has_rest = self._reads_body and not is_stuck
            self._waiting.start(self, BODY_REST_SECONDS if has_rest else CLIENT_SECONDS)


class LiveSocket(WebSocketsSansIOProtocol):
    """A socket. What its client sends is read only once the application has accepted it."""

    def data_received(self, data: bytes) -> None:
        """Take a part; the first one is the whole head, which the library may find too large without an answer."""
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            self.handshake_complete = self.close_sent = True
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Begin the handshake, and stop reading."""
        super().handle_connect(event)
        if not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> Any:
        """Return the next event for the application."""
        return await (super().receive() if self.handshake_complete else self.queue.get())

    async def send(self, message: Any) -> None:
        """Send what the application has; the answer to the handshake lets the client speak."""
        was_open = self.handshake_complete
        await super().send(message)
        if self.handshake_complete and not was_open and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()
