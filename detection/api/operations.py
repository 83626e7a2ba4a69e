"""Routes for operators' tools: `/healthz`, `/readyz` and `/metrics`. None of them needs a project."""

from __future__ import annotations

import ipaddress
import threading
import time
from typing import Any, Final

import orjson
import psycopg
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from detection.api import problems, prometheus
from detection.models import KeyScope
from detection.services import keys
from detection.services.accounts import second_factor

READY_TIMEOUT_SECONDS: Final = 1.0
PROBE_REUSE_SECONDS: Final = 0.25


def healthz(request: HttpRequest) -> HttpResponse:
    """Respond 200 while the process runs; checks nothing else."""
    return _json({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """Respond 200 if the database answers within a second, else 503. Detection works without the broker."""
    if database_check.is_available():
        return _json({"status": "ready", "database": "ok"})
    response = _json({"status": "not ready", "database": "unavailable"}, 503)
    response.headers["Retry-After"] = "1"
    return response


def metrics(request: HttpRequest) -> HttpResponse:
    """Respond with metrics in the text format of Prometheus.

    Open to clients on this machine, to signed-in staff (with the second factor that the installation requires) and to
    keys with the `admin` scope. A key does not see metrics of other projects.
    """
    principal = _admin_principal(request)
    if principal is None and not _is_local_or_staff(request):
        return problems.respond(
            request,
            problems.Problem(
                401,
                "missing_key",
                "From another machine, metrics require a key with the `admin` scope.",
                headers={"WWW-Authenticate": 'Bearer realm="LoopGuard"'},
            ),
        )
    text = prometheus.exposition()
    if principal is not None:
        text = _without_other_projects(text, principal.project_slug)
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


class DatabaseCheck:
    """Checks whether the database answers; concurrent requests share one connection attempt.

    The attempt uses its own connection and thread, so that a stalled socket does not stall the response.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probe: _Probe | None = None

    def is_available(self) -> bool:
        """Return whether the database answers within a second."""
        with self._lock:
            probe = self._probe
            if probe is None or probe.is_outdated:
                probe = self._probe = _Probe()
                probe.start()
        probe.join(max(0.0, probe.started_at + READY_TIMEOUT_SECONDS - time.monotonic()))
        return probe.succeeded

    def clear(self) -> None:
        """Forget the last attempt; the next check connects again."""
        with self._lock:
            self._probe = None


database_check = DatabaseCheck()


class _Probe(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="readyz", daemon=True)
        self.started_at = time.monotonic()
        self.succeeded = False

    @property
    def is_outdated(self) -> bool:
        return not self.is_alive() and time.monotonic() - self.started_at > PROBE_REUSE_SECONDS

    def run(self) -> None:
        known: dict[str, Any] = {**connections["default"].get_connection_params()}
        names = ("host", "port", "user", "password", "dbname", "sslmode", "sslrootcert")
        parameters = {name: known[name] for name in names if name in known}
        try:
            with psycopg.connect(**parameters, connect_timeout=1, autocommit=True) as connection:
                connection.execute("SELECT 1")
            self.succeeded = True
        except (psycopg.Error, OSError):
            self.succeeded = False


def _json(document: dict[str, object], status: int = 200) -> HttpResponse:
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(
        orjson.dumps(document), status=status, content_type="application/json", headers=headers
    )


def _without_other_projects(text: bytes, project: str) -> bytes:
    own = f'project="{project}"'.encode()
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if b'project="' not in line or own in line)


def _admin_principal(request: HttpRequest) -> keys.Principal | None:
    kind, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() != "bearer" or not token.isascii():
        return None
    principal = keys.authenticate(token.strip())
    return principal if principal is not None and KeyScope.ADMIN in principal.scopes else None


def _is_local_or_staff(request: HttpRequest) -> bool:
    if request.META.get("HTTP_AUTHORIZATION"):
        return False
    is_direct = not request.META.get("HTTP_X_FORWARDED_FOR") and not request.META.get("HTTP_FORWARDED")
    try:
        is_local = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "").is_loopback
    except ValueError:
        is_local = False
    return (is_direct and is_local) or _is_staff(request)


def _is_staff(request: HttpRequest) -> bool:
    if not request.user.is_authenticated or not request.user.is_staff:
        return False
    return not settings.REQUIRE_SECOND_FACTOR or bool(request.session.get(second_factor.SESSION_KEY))
