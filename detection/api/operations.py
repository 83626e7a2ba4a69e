"""What operators' tools ask: alive, ready, metrics. No key, no project, no session."""

from __future__ import annotations

import ipaddress
import threading
import time
from typing import Any, Final

import orjson
import psycopg
from django.db import connections
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from detection.api import problems, prometheus
from detection.models import Scope
from detection.services import keys

READY_WITHIN_SECONDS: Final = 1.0
PROBE_HOLDS_SECONDS: Final = 0.25


def _json(document: dict[str, object], status: int = 200) -> HttpResponse:
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(
        orjson.dumps(document), status=status, content_type="application/json", headers=headers
    )


def healthz(request: HttpRequest) -> HttpResponse:
    """Answer as long as the process can; asks nobody else."""
    return _json({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 when the database answers within a second, else 503. The broker is not asked: work goes on without it."""
    if _database_answers():
        return _json({"status": "ready", "database": "ok"})
    response = _json({"status": "not ready", "database": "away"}, 503)
    response.headers["Retry-After"] = "1"
    return response


class _Probe(threading.Thread):
    """Asks the database once, over a connection of its own: a stalled socket must not stall whoever wants to know."""

    def __init__(self) -> None:
        super().__init__(name="readyz", daemon=True)
        self.began = time.monotonic()
        self.answered = False

    def run(self) -> None:
        """Connect and ask."""
        known: dict[str, Any] = {**connections["default"].get_connection_params()}
        names = ("host", "port", "user", "password", "dbname", "sslmode", "sslrootcert")
        parameters = {name: known[name] for name in names if name in known}
        try:
            with psycopg.connect(**parameters, connect_timeout=1, autocommit=True) as connection:
                connection.execute("SELECT 1")
            self.answered = True
        except (psycopg.Error, OSError):
            self.answered = False


_probe: _Probe | None = None
_probe_lock = threading.Lock()


def _database_answers() -> bool:
    """Tell whether it answers within a second; many who ask at once share one approval."""
    global _probe
    with _probe_lock:
        is_old = _probe is None or (
            not _probe.is_alive() and time.monotonic() - _probe.began > PROBE_HOLDS_SECONDS
        )
        if _probe is None or is_old:
            _probe = _Probe()
            _probe.start()
        asked = _probe
    asked.join(max(0.0, asked.began + READY_WITHIN_SECONDS - time.monotonic()))
    return asked.answered


def metrics(request: HttpRequest) -> HttpResponse:
    """Answer in Prometheus' text form, to this machine itself, to staff, and to keys with the scope admin.

    A key belongs to one project and is told nothing that carries another one's name.
    """
    principal = _admin_key(request)
    if principal is None and not _is_local_or_staff(request):
        return problems.respond(
            request,
            problems.Problem(
                401,
                "missing_key",
                "Metrics are for this machine itself, or for a key with the scope admin.",
                headers={"WWW-Authenticate": 'Bearer realm="LoopGuard"'},
            ),
        )
    prometheus.note_bells()
    text = generate_latest(prometheus.REGISTRY)
    if principal is not None:
        text = _only_of(text, principal.project_slug)
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _only_of(text: bytes, project: str) -> bytes:
    own = f'project="{project}"'.encode()
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if b'project="' not in line or own in line)


def _admin_key(request: HttpRequest) -> keys.Principal | None:
    kind, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() != "bearer" or not token.isascii():
        return None
    principal = keys.authenticate(token.strip())
    return principal if principal is not None and Scope.ADMIN in principal.scopes else None


def _is_local_or_staff(request: HttpRequest) -> bool:
    if request.META.get("HTTP_AUTHORIZATION"):
        return False
    is_direct = not request.META.get("HTTP_X_FORWARDED_FOR") and not request.META.get("HTTP_FORWARDED")
    try:
        is_local = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "").is_loopback
    except ValueError:
        is_local = False
    return (is_direct and is_local) or (request.user.is_authenticated and request.user.is_staff)
