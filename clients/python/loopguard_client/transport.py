"""HTTP requests to the server, each with a deadline that also covers name resolution and slow answers.

Requests run in threads of their own, so that the one who waits for them can give up in time, and so that an event loop
is never blocked. Does not belong here: what is sent, and what a failure means for a call.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from loopguard_client import wire

MAX_THREADS: Final = 64
IDLE_SECONDS: Final = 30.0
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
PREFIX: Final = "/api/v1"


@dataclass(frozen=True, slots=True)
class Response:
    """The answer of the server."""

    status: int
    document: Mapping[str, Any]
    retry_after_seconds: float


class NoAnswer(Exception):
    """The server did not answer in time, or not in a form that can be read. The text says why."""

    retry_after_seconds = 0.0


class Rejected(NoAnswer):
    """The server answered with an error that trying again does not change."""


@dataclass(slots=True)
class _Request:
    method: str
    path: str
    body: bytes | BinaryIO | None
    deadline: float
    headers: Mapping[str, str]
    future: Future[Response]


class Transport:
    """Sends requests from a pool of daemon threads with one connection each.

    Parameters
    ----------
    url : str
        Base address of the server, with or without ``/api/v1``.
    key : str or None
        API key; None for the one request that needs none.
    user_agent : str
        Name and version of the client.

    Raises
    ------
    ValueError
        The address is not an HTTP address, or the key cannot be sent.
    """

    def __init__(self, url: str, key: str | None, user_agent: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"The address of LoopGuard must be an HTTP address, not {url!r}.")
        if key is not None and (not key or not key.isascii() or not key.isprintable() or " " in key):
            raise ValueError("The LoopGuard API key is empty or contains invalid characters.")
        self.is_secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if self.is_secure else 80)
        path = parts.path.rstrip("/")
        self.prefix = path if path.endswith(PREFIX) else path + PREFIX
        self.url = f"{parts.scheme}://{parts.netloc}{path.removesuffix(PREFIX)}"
        self._headers = {
            **({} if key is None else {"Authorization": f"Bearer {key}"}),
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": user_agent,
        }
        self.reset()

    def name_program(self, program: str) -> None:
        """Add what the calls pass through to the name of the client."""
        self._headers["User-Agent"] += f" {program}"

    def reset(self) -> None:
        """Forget threads and connections, which a child process does not have."""
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._threads = 0
        self._free = 0  # of them, those that do not serve a request
        self._queued = 0
        self._tls: ssl.SSLContext | None = None

    def send(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> Future[Response]:
        """Start a request.

        Parameters
        ----------
        path
            Path below ``/api/v1``.
        document
            The body, as JSON.
        seconds
            Time until the request is abandoned.
        headers
            Further headers.

        Returns
        -------
        Future
            For the response or `NoAnswer`. Cancel it to stop waiting earlier.
        """
        future: Future[Response] = Future()
        body = None if document is None else wire.dumps(document).encode()
        deadline = time.monotonic() + seconds
        request = _Request(
            method, self.prefix + path, body, deadline, {**self._headers, **(headers or {})}, future
        )
        with self._lock:
            self._queued += 1
            start = self._queued > self._free and self._threads < MAX_THREADS
            if start:
                self._threads += 1
                self._free += 1
        self._waiting.put(request)
        if start:
            try:
                threading.Thread(
                    target=self._work, args=(self._waiting,), name="loopguard-client", daemon=True
                ).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                with self._lock:
                    self._threads -= 1
                    self._free -= 1
        return future

    def send_here(self, method: str, path: str, document: Any, *, seconds: float) -> Response:
        """Send a request from the calling thread, on a connection of its own.

        Raises
        ------
        NoAnswer
            The server did not answer; name resolution may make that later than `seconds`.
        """
        return self._send_here(method, path, wire.dumps(document).encode(), seconds, {})

    def upload(self, path: str, file: BinaryIO, size: int, media_type: str, *, seconds: float) -> Response:
        """Send a file of `size` bytes from the calling thread; see `send_here`."""
        about = {"Content-Type": media_type, "Content-Length": str(size)}
        return self._send_here("POST", path, file, seconds, about)

    def _send_here(
        self, method: str, path: str, body: bytes | BinaryIO, seconds: float, about: Mapping[str, str]
    ) -> Response:
        headers = {**self._headers, **about, "Connection": "close"}
        request = _Request(method, self.prefix + path, body, time.monotonic() + seconds, headers, Future())
        with contextlib.closing(_Connection(self)) as connection:
            return connection.send(request)

    def _work(self, waiting: queue.SimpleQueue[_Request]) -> None:
        connection = _Connection(self)
        while True:
            try:
                request = waiting.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._free > self._queued:
                        self._free -= 1
                        self._threads -= 1
                        break
                continue  # a request is on its way to this thread
            with self._lock:
                self._queued -= 1
                self._free -= 1
            if request.future.set_running_or_notify_cancel():
                try:
                    response = connection.send(request)
                except NoAnswer as error:
                    request.future.set_exception(error)
                except Exception as error:  # noqa: BLE001 (nothing here may break an agent)
                    connection.close()
                    request.future.set_exception(NoAnswer(f"{type(error).__name__}: {error}"))
                else:
                    request.future.set_result(response)
            with self._lock:
                self._free += 1
            del request  # else an idle thread keeps its last body
        connection.close()

    def tls(self) -> ssl.SSLContext:
        """Return the settings of TLS: certificates of the system, or of ``SSL_CERT_FILE``."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


class _Connection:
    """A connection that is kept open, of one thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._http: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._http is not None:
            with contextlib.suppress(OSError):
                self._http.close()
        self._http = None

    def send(self, request: _Request) -> Response:
        is_reused = self._http is not None
        try:
            return self._exchange(request)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not is_reused:
                raise NoAnswer(_sentence(error, self._transport)) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(_sentence(error, self._transport)) from None
        # The server had closed the idle connection. Events count once, so that sending again is safe.
        try:
            return self._exchange(request)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(_sentence(error, self._transport)) from None

    def _exchange(self, request: _Request) -> Response:
        connection = self._http or self._connect(request)
        connection.timeout = left = _left(request.deadline)
        if connection.sock is not None:
            connection.sock.settimeout(left)
        connection.response_class = functools.partial(_Response, request.deadline)  # type: ignore[assignment]
        connection.request(request.method, request.path, request.body, dict(request.headers))
        with connection.getresponse() as response:
            raw = bytearray()
            while chunk := response.read1(65_536):
                raw += chunk
                if len(raw) > MAX_RESPONSE_BYTES:
                    self.close()
                    raise NoAnswer("The answer is too long to be from LoopGuard.")
            if response.will_close:
                self.close()
            status, retry_after = response.status, response.headers.get("Retry-After", "")
        try:
            document = json.loads(bytes(raw)) if raw else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            if status < 400:
                raise NoAnswer(f"{self._transport.url} is not a LoopGuard server: its answer is not JSON.")
            document = {}
        return Response(status, document, float(retry_after) if retry_after.isdigit() else 0.0)

    def _connect(self, request: _Request) -> http.client.HTTPConnection:
        seconds = _left(request.deadline)
        host, port = self._transport.host, self._transport.port
        self._http = (
            http.client.HTTPSConnection(host, port, timeout=seconds, context=self._transport.tls())
            if self._transport.is_secure
            else http.client.HTTPConnection(host, port, timeout=seconds)
        )
        return self._http


class _Response(http.client.HTTPResponse):
    """A response whose head and body together arrive before a deadline, however slowly they trickle in."""

    def __init__(self, deadline: float, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, deadline))


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _sentence(error: Exception, transport: Transport) -> str:
    if isinstance(error, TimeoutError):
        return f"{transport.url} did not answer in time."
    if isinstance(error, ConnectionRefusedError):
        return f"No server listens at {transport.url}."
    if isinstance(error, socket.gaierror):
        return f"The name {transport.host} was not found."
    if isinstance(error, ssl.SSLError):
        return (
            f"The certificate or the encryption of {transport.url} was not accepted: {error.reason or error}."
        )
    return f"The connection to {transport.url} failed: {type(error).__name__}."
