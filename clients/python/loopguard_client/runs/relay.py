"""The address on this machine that a program's model requests pass through on their way to the gateway.

It adds the key and the tags of the run, so that the program has neither, and sends requests to the model server itself
while the gateway is away. Bodies pass byte by byte, in pieces.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

CONNECT_SECONDS: Final = 3.0
"""How long a connection may take before the request goes past the gateway."""
ANSWER_SECONDS: Final = 900.0
"""How long a silent model server is waited for: as long as the gateway does."""
PAUSE_SECONDS: Final = 5.0
"""How long the gateway is not asked after it could not be reached."""
PIECE_BYTES: Final = 64 * 1024
_HOP_BY_HOP: Final = frozenset(
    (
        "connection", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests of one kind go.

    Attributes
    ----------
    guarded : str
        Address on the LoopGuard server.
    direct : str
        Address to use while that is away; empty if there is none.
    version : str
        What a path must begin with.
    """

    guarded: str
    direct: str = ""
    version: str = ""


class Relay:
    """Passes requests on until it is closed.

    Parameters
    ----------
    routes : mapping
        Where requests go, by a name.
    headers : mapping
        Headers for requests to LoopGuard.
    fail_closed : bool
        Refuse requests while LoopGuard is away instead of sending them to the model server.
    tell : callable
        Called with a sentence for the person, from any thread, when LoopGuard goes away or comes back.

    Attributes
    ----------
    past : int
        Requests that went past LoopGuard.
    refused : int
        Requests that were refused because LoopGuard was away.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        headers: Mapping[str, str],
        *,
        fail_closed: bool = False,
        tell: Callable[[str], None],
    ) -> None:
        self.routes, self.headers, self.fails_closed = dict(routes), dict(headers), fail_closed
        self.past = self.refused = 0
        self._tell, self._lock = tell, threading.Lock()
        self._away_until = 0.0
        self._is_away = False
        self.secret = secrets.token_urlsafe(16)  # other accounts of this machine can reach the address, too
        handler = type("Handler", (_Handler,), {"relay": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def url(self, name: str) -> str:
        """Return the address of a route."""
        return f"http://127.0.0.1:{self._server.server_port}/{self.secret}/{name}"

    def close(self) -> None:
        """Accept no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def may_ask(self) -> bool:
        """Return whether the gateway is to be tried."""
        return time.monotonic() >= self._away_until

    def answered(self) -> None:
        """Note that LoopGuard can be reached."""
        with self._lock:
            was_away, self._is_away = self._is_away, False
        if was_away:
            self._tell("LoopGuard answers again: model requests are guarded.")

    def missed(self, direct: str) -> None:
        """Note that a request could not reach LoopGuard, and goes to `direct` if that is not empty."""
        with self._lock:
            is_new, self._is_away = not self._is_away, True
            if self.may_ask():
                self._away_until = time.monotonic() + PAUSE_SECONDS
            if direct:
                self.past += 1
            else:
                self.refused += 1
        if is_new:
            where = f"go to {direct}, unguarded" if direct else "are refused"
            self._tell(f"LoopGuard cannot be reached: model requests {where} until it answers.")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Write nothing to the terminal of the program: the other side has gone."""


class _Handler(BaseHTTPRequestHandler):
    relay: Relay
    protocol_version = "HTTP/1.1"
    timeout = ANSWER_SECONDS
    _has_begun = False

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def _serve(self) -> None:
        self._has_begun = False
        _, given, name, rest = (*self.path.split("/", 3), "", "", "")[:4]
        route = self.relay.routes.get(name)
        if route is None or not hmac.compare_digest(given.encode(), self.relay.secret.encode()):
            self._refuse(404, "not_found", "There is nothing at this address.")
            return
        path = f"/{rest}"
        if route.version and not path.startswith(f"{route.version}/"):
            path = route.version + path
        try:
            found = self._connected(route)
            if found is None:
                self._refuse(503, "loopguard_away", "LoopGuard cannot be reached, and this run fails closed.")
                return
            connection, base, headers = found
            with contextlib.closing(connection):
                self._send(connection, urlsplit(base).path.rstrip("/") + path, headers)
                if self._is_answered(connection):
                    self._answer(connection.getresponse())
                else:
                    self.close_connection = True
        except (OSError, ValueError, http.client.HTTPException):
            if self._has_begun:
                self.close_connection = True
            else:
                self._refuse(502, "no_answer", "The connection to the model server failed.")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve  # noqa: N815

    def _connected(self, route: Route) -> tuple[http.client.HTTPConnection, str, Mapping[str, str]] | None:
        """Return a connection, the address that it is for, and headers to add; None: there is none to use."""
        if self.relay.may_ask():
            with contextlib.suppress(OSError):
                connection = _connect(route.guarded)
                self.relay.answered()
                return connection, route.guarded, self.relay.headers
        direct = "" if self.relay.fails_closed else route.direct
        self.relay.missed(direct)
        return (_connect(direct), direct, {}) if direct else None

    def _send(self, connection: http.client.HTTPConnection, path: str, added: Mapping[str, str]) -> None:
        own = {name.lower() for name in added}
        is_chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        connection.putrequest(self.command, path, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP and name.lower() not in own:
                connection.putheader(name, value)
        for name, value in added.items():
            connection.putheader(name, value)
        if is_chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for piece in self._body(is_chunked):
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
        if is_chunked:
            connection.send(b"0\r\n\r\n")

    def _body(self, is_chunked: bool) -> Iterator[bytes]:
        if not is_chunked:
            left = int(self.headers.get("Content-Length") or 0)
            while left > 0:
                piece = self._read(min(left, PIECE_BYTES))
                left -= len(piece)
                yield piece
            return
        while size := int(self.rfile.readline(64).partition(b";")[0] or b"0", 16):
            while size > 0:
                piece = self._read(min(size, PIECE_BYTES))
                size -= len(piece)
                yield piece
            self.rfile.readline(8)
        while self.rfile.readline(PIECE_BYTES) not in (b"\r\n", b"\n", b""):
            pass  # trailers

    def _read(self, size: int) -> bytes:
        piece = self.rfile.read(size)
        if not piece:
            raise ConnectionAbortedError
        return piece

    def _is_answered(self, connection: http.client.HTTPConnection) -> bool:
        """Wait for the answer; returns False if the program gives up first, so that the model server stops, too."""
        ready, _, _ = select.select((self.connection, connection.sock), (), (), ANSWER_SECONDS)
        if not ready:
            raise TimeoutError
        return connection.sock in ready or bool(self.connection.recv(1, socket.MSG_PEEK))

    def _answer(self, response: http.client.HTTPResponse) -> None:
        self._has_begun = True
        with contextlib.closing(response):
            self.send_response_only(response.status, response.reason)
            for name, value in response.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            has_body = self.command != "HEAD" and response.status not in (204, 304)
            is_chunked = has_body and response.getheader("Content-Length") is None
            if is_chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while has_body and (piece := response.read1(PIECE_BYTES)):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            if has_body and response.length:
                raise http.client.IncompleteRead(b"", response.length)
            if is_chunked:
                self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer in a form that SDKs of every provider read, as the gateway does; the request may be half read."""
        self.close_connection = True
        error = {"type": "api_error", "code": code, "message": f"loopguard run: {detail}", "param": None}
        body = json.dumps({"type": "error", "error": error}).encode()
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)


def _connect(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        made: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=CONNECT_SECONDS, context=context
        )
    else:
        made = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_SECONDS)
    made.connect()
    made.sock.settimeout(ANSWER_SECONDS)
    return made
