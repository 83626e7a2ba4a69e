"""A server in front of LoopGuard that can be away, silent or broken."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Handler(BaseHTTPRequestHandler):
    """Passes one request on, or does what the mode of the proxy says."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: ThreadingHTTPServer

    def handle_request(self) -> None:
        proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.seen.append(f"{self.command} {self.path}")
        mode = proxy.mode
        if mode == "silent":
            proxy.released.wait(30)
        elif mode == "trickle":
            self.trickle(proxy.released)
        elif mode == "fail":
            self.answer(500, b"<h1>Oops</h1>", {"Content-Type": "text/html"})
        elif mode == "busy":
            self.answer(503, b"{}", {"Retry-After": "1"})
        elif mode == "no-events" and self.path.endswith("/events"):
            self.answer(403, b'{"code": "forbidden", "detail": "The key lacks a scope."}', {})
        elif mode == "late-events" and self.path.endswith("/events"):
            self.answer(429, b'{"code": "spike", "detail": "Too many events."}', {"Retry-After": "1"})
        elif mode == "no-read" and self.command == "GET":
            self.answer(403, b'{"code": "missing_scope", "detail": "The key needs the `read` scope."}', {})
        elif mode != "refuse":
            status, content, content_type = self.passed_on(proxy.target, body)
            if mode != "lose":
                self.answer(status, content, {"Content-Type": content_type})
        if mode in ("refuse", "silent", "trickle", "lose"):
            self.close_connection = True

    do_GET = do_POST = handle_request  # noqa: N815

    def passed_on(self, target: str, body: bytes) -> tuple[int, bytes, str]:
        parts = urlsplit(target)
        behind = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        with contextlib.closing(behind):
            behind.request(self.command, self.path, body or None, dict(self.headers))
            response = behind.getresponse()
            return response.status, response.read(), response.headers.get("Content-Type", "")

    def trickle(self, released: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while not released.wait(0.01):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


class Proxy:
    """Passes requests on, unless `mode` says otherwise.

    Attributes
    ----------
    mode : str
        ``pass``; ``refuse``: close the connection; ``silent``: never answer; ``trickle``: answer with a head that
        never ends; ``lose``: pass the request on and lose its answer; ``fail``: 500 with HTML; ``busy``: 503 with
        Retry-After; ``no-events`` and ``late-events``: 403 and 429 for /events; ``no-read``: 403 for everything
        that is only read.
    seen : list
        Method and path of every request.
    """

    def __init__(self, target: str) -> None:
        self.target, self.mode = target, "pass"
        self.seen: list[str] = []
        self.released = threading.Event()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.proxy = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve until the block ends."""
        thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            thread.join(10)
            self._server.server_close()
