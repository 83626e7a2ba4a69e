"""Routes for operators' tools: `/healthz`, `/readyz` and `/metrics`. None of them needs a project."""

from __future__ import annotations

import ipaddress

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from detection.api import problems, prometheus
from detection.selectors.database_check import database_check
from detection.services.accounts import second_factor
from detection.web.process_metrics import readers


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
    keys with the scope `metrics` or `admin`. A key does not see metrics of other projects.
    """
    principal = readers.principal_of(request.META.get("HTTP_AUTHORIZATION", ""))
    if principal is None and not _is_local_or_staff(request):
        return problems.respond(
            request,
            problems.Problem(
                401,
                "missing_key",
                "From another machine, metrics require a key with the scope `metrics` or `admin`.",
                headers={"WWW-Authenticate": 'Bearer realm="LoopGuard"'},
            ),
        )
    text = prometheus.exposition()
    if principal is not None:
        text = _without_other_projects(text, principal.project_slug)
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _json(document: dict[str, object], status: int = 200) -> HttpResponse:
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(
        orjson.dumps(document), status=status, content_type="application/json", headers=headers
    )


def _without_other_projects(text: bytes, project: str) -> bytes:
    own = f'project="{project}"'.encode()
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if b'project="' not in line or own in line)


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
