"""A real HTTP server in a thread that responds as configured and records all requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | list[bytes] = b"ok"
    after_seconds: float = 0.0
    drip_seconds: float = 0.0


@dataclass
class Receiver:
    """`replies` are used up one by one; after the last one everything is answered with 200."""

    port: int = 0
    replies: list[Reply] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/s3cr3t-path"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers, _ in self.requests]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append((self.path, headers, body))
            reply = receiver.replies.pop(0) if receiver.replies else Reply()
            time.sleep(reply.after_seconds)
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for piece in reply.body if isinstance(reply.body, list) else [reply.body]:
                    self.wfile.write(piece)
                    self.wfile.flush()
                    time.sleep(reply.drip_seconds)
            except OSError:
                pass  # the sender has gone

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
