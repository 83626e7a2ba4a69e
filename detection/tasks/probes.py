"""Answers `/healthz`, `/readyz` and `/metrics` in a worker and in beat, where `LOOPGUARD_PROBE_ADDRESS` says so."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any, Final

import structlog
from celery.signals import beat_init, task_postrun, task_prerun, worker_init
from django.conf import settings
from django.db import DatabaseError, connection
from prometheus_client import CONTENT_TYPE_LATEST

from detection.selectors.database_check import database_check
from detection.web import process_metrics

log = structlog.get_logger(__name__)
MAX_REQUESTS: Final = 8
"""Requests at a time; the connection of another one is closed. A judgement: a probe and two readers of metrics."""
SECONDS: Final = 5.0
"""How long a client may take."""
_JSON: Final = "application/json"
_Answer = tuple[int, str, bytes]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        if ":" in address[0]:
            self.address_family = AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Listen, without looking up the name of this machine as `HTTPServer` does."""
        super(HTTPServer, self).server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and let the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients leave when they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def setup(self) -> None:
        """Wait for the client no longer than it may take."""
        super().setup()
        self.connection.settimeout(SECONDS)

    def do_GET(self) -> None:
        """Answer a request."""
        status, kind, body = self._answer()
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, *_: object) -> None:
        """Log nothing: probes come every few seconds."""

    def _answer(self) -> _Answer:
        if self.path == "/healthz":
            return 200, _JSON, b'{"status":"ok"}'
        if self.path == "/readyz":
            is_available = database_check.is_available()
            return (
                (200, _JSON, b'{"status":"ready","database":"ok"}')
                if is_available
                else (503, _JSON, b'{"status":"not ready","database":"unavailable"}')
            )
        if self.path == "/metrics":
            return self._metrics()
        return 404, _JSON, b'{"status":"not found"}'

    def _metrics(self) -> _Answer:
        try:
            given = {name.lower(): value for name, value in self.headers.items()}
            is_reader = process_metrics.is_of_this_machine(self.client_address[0], given) or (
                process_metrics.readers.principal_of(given.get("authorization", "")) is not None
            )
        except DatabaseError:
            return 503, _JSON, b'{"status":"unavailable","database":"unavailable"}'
        finally:
            connection.close()
        if not is_reader:
            return 401, _JSON, b'{"status":"a key with the scope metrics or admin is required"}'
        return 200, CONTENT_TYPE_LATEST, process_metrics.exposition()


def serve(address: tuple[str, int]) -> _Server | None:
    """Answer probes at an address, in a thread; return the server, or None with a line in the log if it is in use."""
    try:
        server = _Server(address)
    except OSError as error:
        log.warning("probe_address_not_available", address=address, error=error.strerror)
        return None
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server


class TaskTimes:
    """Counts and times the tasks of this worker."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def begin(self, task_id: str = "", **_: object) -> None:
        """Note that a task begins."""
        self._started[task_id] = time.monotonic()

    def end(self, task_id: str = "", task: Any = None, state: str | None = None, **_: object) -> None:
        """Count a task that has ended."""
        started = self._started.pop(task_id, None)
        if started is not None:
            process_metrics.TASK_SECONDS.labels(task.name).observe(time.monotonic() - started)
        process_metrics.TASKS.labels(task.name, (state or "unknown").lower()).inc()


@worker_init.connect(dispatch_uid="detection.probes")
def _start_in_worker(**_: object) -> None:
    times = TaskTimes()
    task_prerun.connect(times.begin, weak=False, dispatch_uid="detection.probes")
    task_postrun.connect(times.end, weak=False, dispatch_uid="detection.probes")
    _start()


@beat_init.connect(dispatch_uid="detection.probes")
def _start(**_: object) -> None:
    if settings.PROBE_ADDRESS:
        serve(settings.PROBE_ADDRESS)
