"""One request on its way through the WSGI application: the environ, and the response back to Granian."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from detection.web.ending import is_ending

SEND_SECONDS: Final = 10.0
"""How long a client may delay a thread during a streamed response, besides the time of `MIN_BYTES_PER_SECOND`."""
MIN_BYTES_PER_SECOND: Final = 64 * 1024
_MAX_NAMES: Final = 500
_SHARED: Final = {
    "SCRIPT_NAME": "",
    "wsgi.errors": sys.stderr,
    "wsgi.input_terminated": True,
    "wsgi.multiprocess": False,
    "wsgi.multithread": True,
    "wsgi.run_once": False,
    "wsgi.version": (1, 0),
}
_names: dict[str, str] = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}

Headers = list[tuple[str, str]]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class RsgiScope(Protocol):
    """A request as described by Granian."""

    method: str
    path: str
    query_string: str
    scheme: str
    http_version: str
    client: str
    server: str
    headers: Any


def environ_of(scope: RsgiScope, body: bytes) -> dict[str, Any]:
    """Return the WSGI environ of a request."""
    client, _, _ = scope.client.rpartition(":")
    host, _, port = scope.server.rpartition(":")
    environ: dict[str, Any] = {
        **_SHARED,
        "REQUEST_METHOD": scope.method,
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string.encode().decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "SERVER_NAME": host,
        "SERVER_PORT": port,
        "REMOTE_ADDR": client.strip("[]"),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.file_wrapper": File,
    }
    for name, value in scope.headers.items():
        key = _names.get(name) or _environ_name(name)
        if not key:
            continue
        known = environ.get(key)
        environ[key] = value if known is None else f"{known}{';' if key == 'HTTP_COOKIE' else ','}{value}"
    return environ


def _environ_name(name: str) -> str:
    """Return the name of a header in the environ; empty for one that would pass for another header."""
    if "_" in name:
        return ""
    key = f"HTTP_{name.upper().replace('-', '_')}"
    if len(_names) < _MAX_NAMES:
        _names[name] = key
    return key


class File:
    """A file that the application serves, such as a style sheet."""

    def __init__(self, file: Any, block_size: int = 0) -> None:
        self.file = file
        self.close = file.close

    def __iter__(self) -> Any:
        """Yield the whole file at once."""
        yield self.file.read()


class Responder:
    """Sends the response of the application; to be used in the thread that called it.

    Parameters
    ----------
    protocol, loop
        Granian's protocol object of the request, and its event loop.
    claim
        Called once, when the response begins; it is dropped if that returns False.
    """

    def __init__(self, protocol: Any, loop: asyncio.AbstractEventLoop, claim: Callable[[], bool]) -> None:
        self._protocol, self._loop, self._claim = protocol, loop, claim
        self._status = 500
        self._headers: Headers = []

    def start(self, status: str, headers: Headers, _error: Any = None) -> None:
        """Take status and headers: WSGI's ``start_response``."""
        self._status, self._headers = int(status[:3]), headers

    def send(self, result: Any) -> None:
        """Send what the application returned.

        Raises
        ------
        OSError
            When the client accepts the parts of a stream too slowly.
        """
        if getattr(result, "streaming", False):
            self._stream(result)
            return
        body = b"".join(result)
        if self._claim():
            self._protocol.response_bytes(self._status, self._last_headers(), body)

    def _last_headers(self) -> Headers:
        """Return the headers; a process that is about to end asks clients to connect anew, to another one."""
        return [*self._headers, ("connection", "close")] if is_ending.is_set() else self._headers

    def _stream(self, parts: Iterable[bytes]) -> None:
        if not self._claim():
            return
        transport = self._protocol.response_stream(self._status, self._last_headers())

        async def send(part: bytes, seconds: float) -> None:
            async with asyncio.timeout(seconds):
                await transport.send_bytes(part)

        left = SEND_SECONDS
        for part in parts:
            left += len(part) / MIN_BYTES_PER_SECOND
            began = time.monotonic()
            # The second deadline is for a loop that has ended.
            asyncio.run_coroutine_threadsafe(send(part, left), self._loop).result(left + 1)
            left -= time.monotonic() - began
