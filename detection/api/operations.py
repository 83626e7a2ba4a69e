"""What operators' tools ask: alive, ready, metrics. No key, no project, no session."""

from __future__ import annotations

import ipaddress
import threading
from typing import Final

import orjson
import psycopg
from django.db import connections
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from detection.api import problems, telemetry
from detection.models import Scope
from detection.services import keys

READY_WITHIN_SECONDS: Final = 1.0


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


def _database_answers() -> bool:
    """Ask over a connection of its own, in a thread of its own: a stalled socket must not stall the answer."""
    outcome: list[bool] = []

    def ask() -> None:
        parameters = connections["default"].get_connection_params()  # type: ignore[no-untyped-call]
        kept = {
            name: parameters[name]
            for name in ("host", "port", "user", "password", "dbname")
            if name in parameters
        }
        kept |= {name: parameters[name] for name in ("sslmode", "sslrootcert") if name in parameters}
        try:
            with psycopg.connect(**kept, connect_timeout=1, autocommit=True) as connection:
                connection.execute("SELECT 1")
            outcome.append(True)
        except (psycopg.Error, OSError):
            outcome.append(False)

    asking = threading.Thread(target=ask, name="readyz", daemon=True)
    asking.start()
    asking.join(READY_WITHIN_SECONDS)
    return outcome == [True]


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
    telemetry.note_bells()
    text = generate_latest(telemetry.REGISTRY)
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
