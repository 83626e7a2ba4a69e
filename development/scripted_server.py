"""A server on this machine that answers as told: the endpoint of a model or a judge, for tests and measurements."""

from __future__ import annotations

import contextlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Self


class ScriptedServer(ABC):
    """Answers the JSON document of every POST request.

    Parameters
    ----------
    port
        Of the loopback address; 0 for any free one.
    """

    def __init__(self, port: int = 0) -> None:
        scripted = self

        class ScriptedHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, told, headers = scripted.answer(asked, dict(self.headers))
                body = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
                for name, value in {**usual, **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):  # the other side had enough
                    scripted.write(self.wfile, body)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), ScriptedHandler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    @abstractmethod
    def answer(self, asked: Any, headers: Mapping[str, str]) -> tuple[int, Any, Mapping[str, str]]:
        """Return the status, the document or its bytes, and headers beside the usual ones."""

    def write(self, file: BufferedIOBase, body: bytes) -> None:
        """Send the body of an answer."""
        file.write(body)

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Answer requests within the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)
