"""A scripted model server on a real socket: answers requests as told, with faults, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


@dataclass
class Answer:
    """What is sent: parts of the body, and between them pauses in seconds; a fault ends it.

    `ends` is "well", "cut" (in the middle of the body), "silent" (until the client goes), "mute" (silent without a head) or
    "refused" (closed without a head).
    """

    parts: Sequence[bytes | float] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    is_chunked: bool = False
    ends: str = "well"

    @property
    def body(self) -> bytes:
        return b"".join(part for part in self.parts if isinstance(part, bytes))


def of_json(document: Any, status: int = 200, **headers: str) -> Answer:
    return Answer([json.dumps(document).encode()], status, {"Content-Type": "application/json", **headers})


def of_events(events: Sequence[bytes | float], **more: Any) -> Answer:
    return Answer(
        events, headers={"Content-Type": "text/event-stream; charset=utf-8"}, is_chunked=True, **more
    )


@dataclass
class ModelServer:
    """`script` answers each request; `asked` are the requests so far, `gone` counts clients that left early."""

    script: Callable[..., Answer]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    gone: int = 0
    sent: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[ModelServer]:
        class Handler(_Handler):
            model = self

        server = _Server(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            with suppress(RuntimeError):
                thread.join(5)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0
    model: ModelServer

    def answer(self) -> None:
        body = self.read_body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.path, headers, body, self.client_address[1])
        self.model.asked.append(asked)
        reply = self.model.script(asked)
        if reply.ends == "refused":
            self.close_connection = True
            return
        if reply.ends == "mute":
            self.wait_until_gone()
            return
        head = [f"HTTP/1.1 {reply.status} Told", *(f"{n}: {v}" for n, v in reply.headers.items())]
        if reply.is_chunked:
            head.append("Transfer-Encoding: chunked")
        elif reply.ends == "well":
            head.append(f"Content-Length: {len(reply.body)}")
        else:
            head.append("Content-Length: 1000000")
        try:
            self.wfile.write(("\r\n".join(head) + "\r\n\r\n").encode())
            self.send_parts(reply)
        except OSError:
            self.model.gone += 1
            self.close_connection = True

    def wait_until_gone(self) -> None:
        self.connection.settimeout(60)
        with suppress(ConnectionResetError):
            if self.connection.recv(1):
                return
        self.model.gone += 1
        self.close_connection = True

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send_parts(self, reply: Answer) -> None:
        for part in reply.parts:
            if isinstance(part, float):
                time.sleep(part)
                continue
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if reply.is_chunked else part)
            self.model.sent += len(part)
        if reply.ends == "silent":
            self.wait_until_gone()
            return
        self.close_connection = self.close_connection or reply.ends == "cut"
        if reply.is_chunked and reply.ends != "cut":
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_DELETE = do_PUT = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass
