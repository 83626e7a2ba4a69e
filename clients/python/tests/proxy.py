"""A server in front of LoopGuard that can be away, silent or broken."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Proxy:
    """Passes requests on, unless `mode` says otherwise.

    Attributes
    ----------
    mode : str
        ``pass``; ``refuse``: close the connection; ``silent``: never answer; ``lose``: pass the request on and
        lose its answer; ``fail``: 500 with HTML; ``busy``: 503 with Retry-After; ``no-events``: 403 for /events.
    seen : list
        Method and path of every request.
    """

    def __init__(self, target: str) -> None:
        self.mode = "pass"
        self.seen: list[str] = []
        self.released = threading.Event()
        parts = urlsplit(target)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                mode = proxy.mode
                proxy.seen.append(f"{self.command} {self.path}")
                if mode == "silent":
                    proxy.released.wait(30)
                if mode in ("refuse", "silent"):
                    self.close_connection = True
                    return
                if mode == "fail":
                    self.answer(500, b"<h1>Oops</h1>", {"Content-Type": "text/html"})
                    return
                if mode == "busy":
                    self.answer(503, b"{}", {"Retry-After": "1"})
                    return
                if mode == "no-events" and self.path.endswith("/events"):
                    self.answer(403, b'{"code": "forbidden", "detail": "The key lacks a scope."}', {})
                    return
                behind = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
                behind.request(self.command, self.path, body or None, dict(self.headers))
                response = behind.getresponse()
                content = response.read()
                behind.close()
                if mode == "lose":
                    self.close_connection = True
                    return
                self.answer(response.status, content, {"Content-Type": "application/json"})

            do_GET = do_POST = handle_request  # noqa: N815

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

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()
