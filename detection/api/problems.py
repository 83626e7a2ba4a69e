"""Refusals as problem documents (RFC 9457): one shape, a stable code, the field to blame, and never a page of HTML."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from detection.api import prometheus
from detection.api.requests import as_api_request
from detection.selectors.pages import BadCursor
from detection.services.errors import ServiceError
from detection.services.ingestion import attempts
from detection.services.maintenance import disk_space
from detection.strict_json import JsonProblem, join

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"

CODE_OF_STATUS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    500: "internal_error",
    503: "unavailable",
}
_DISK_FULL = "53100"
"""PostgreSQL's word for it. The others of its class, memory and connections, pass sooner: 503 `unavailable`."""
STATUS_OF_JSON_CODE = {"not_json": 400}


class Problem(Exception):
    """A refusal on its way to the client.

    Parameters
    ----------
    status
        HTTP status.
    code
        Stable, in snake case.
    path
        The field to blame, as in ``calls[0].tool``.
    errors
        When there are several: each ``{"path", "code", "hint"}``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        path: str = "",
        errors: list[dict[str, str]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.path = status, code, detail, path
        self.errors, self.headers = errors or [], headers or {}


def of_json(problem: JsonProblem, prefix: str = "") -> Problem:
    """Turn what the parser refuses into a problem."""
    status = STATUS_OF_JSON_CODE.get(problem.code, 422)
    return Problem(status, problem.code, problem.detail, path=join(prefix, problem.path))


def respond(request: HttpRequest, problem: Problem) -> HttpResponse:
    """Write a problem document."""
    document: dict[str, Any] = {
        "type": f"/api/v1/docs#{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "request_id": getattr(request, "request_id", ""),
    }
    if problem.path:
        document["path"] = problem.path
    if problem.errors:
        document["errors"] = problem.errors
    headers = dict(problem.headers)
    if problem.status in (429, 503):
        # Spread out, so that everybody who was turned away does not come back at once.
        headers.setdefault("Retry-After", str(random.randint(1, 3)))  # noqa: S311
    as_api_request(request).problem = problem
    return HttpResponse(
        orjson.dumps(document), status=problem.status, content_type=CONTENT_TYPE, headers=headers
    )


def storage_full() -> Problem:
    """Return the refusal for a disk without room, which takes a person or the retention a while to make."""
    return Problem(
        503,
        "storage_full",
        "The disk of the database is full or nearly so; no events are taken until it has room. Everything else goes on.",
        headers={"Retry-After": str(random.randint(10, 20))},  # noqa: S311 - spread out, as below
    )


def refuse_without_room() -> None:
    """Refuse what would fill the disk of the database further, before anything is written.

    Raises
    ------
    Problem
        503 `storage_full`.
    """
    if disk_space.is_full():
        raise storage_full()


def of_exception(error: Exception) -> Problem:
    """Find the problem that an exception stands for; what nobody expected is logged and becomes a 500."""
    if isinstance(error, HttpError) and isinstance(error.__cause__, Problem):
        return error.__cause__
    if isinstance(error, Problem):
        return error
    if isinstance(error, JsonProblem):
        return of_json(error)
    if isinstance(error, ServiceError):
        return Problem(error.status, error.code, error.detail, path=error.field)
    if isinstance(error, BadCursor):
        return Problem(422, "invalid_cursor", str(error), path="cursor")
    if isinstance(error, ValidationError):
        return _of_validation(error)
    if isinstance(error, Http404):
        return Problem(404, "not_found", "There is no such thing here.")
    if isinstance(error, HttpError):
        return Problem(error.status_code, CODE_OF_STATUS.get(error.status_code, "refused"), str(error))
    problem = _of_database(error) if isinstance(error, (DatabaseError, InterfaceError)) else None
    if problem is None:
        log.error("unexpected_error", exc_info=error)
    return problem or Problem(
        500, "internal_error", "Something broke on our side; the log names the request."
    )


def _of_database(error: Exception) -> Problem | None:
    """Find the problem of what the database refused; None when our own statement was wrong."""
    if getattr(error.__cause__, "sqlstate", None) == _DISK_FULL:
        log.error("database_disk_full", error=str(error)[:200])
        return storage_full()
    if isinstance(error, (OperationalError, InterfaceError)):
        log.warning("database_unavailable", error=str(error)[:200])
        return Problem(503, "unavailable", "The database cannot answer right now; try again.")
    if isinstance(error, IntegrityError):
        log.warning("write_conflict", error=str(error)[:200])
        return Problem(409, "conflict", "Somebody changed the same thing at the same moment; try again.")
    return None


def _of_validation(error: ValidationError) -> Problem:
    errors = []
    for item in error.errors[:20]:
        source, *steps = [step for step in item["loc"] if step != "body_params"]
        path = ""
        for step in steps if source != "body" else steps[1:]:
            path = join(path, f"[{step}]" if isinstance(step, int) else str(step)[:60])
        code = {"missing": "missing", "extra_forbidden": "unknown_field"}.get(item["type"], "invalid")
        errors.append({"path": path, "code": code, "hint": str(item["msg"])[:200]})
    first = errors[0]
    return Problem(422, first["code"], first["hint"], path=first["path"], errors=errors)


def install(api: NinjaAPI) -> None:
    """Make every exception inside a route a problem document."""

    def handle(request: HttpRequest, error: Any) -> HttpResponse:
        problem = of_exception(error)
        _note(request, problem)
        return respond(request, problem)

    for kind in (Exception, Http404, HttpError, ValidationError):
        api.add_exception_handler(kind, handle)


def _note(request: HttpRequest, problem: Problem) -> None:
    """Count a refusal of the routes that agents use, and show it on the Connect screen."""
    route = getattr(request, "attempt", "")
    if not route:
        return
    principal = getattr(request, "principal", None)
    prometheus.REQUESTS.labels(route, str(problem.status), problem.code).inc()
    attempts.note(
        principal.project_id if principal else None,
        route,
        problem.status,
        problem.code,
        f"{problem.path}: {problem.detail}" if problem.path else problem.detail,
        f"lg_{principal.public_id}" if principal else getattr(request, "key_hint", ""),
    )


class ProblemMiddleware:
    """Turns whatever refusal did not come from a route (unknown path, method, host) into a problem document too."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer; pages outside ``/api/`` pass through."""
        response = self.get_response(request)
        status = response.status_code
        if status < 400 or not request.path_info.startswith("/api/") or hasattr(request, "problem"):
            return response
        code = CODE_OF_STATUS.get(status, "refused")
        detail = _DETAILS.get(status, HTTPStatus(status).phrase)
        kept = {name: response.headers[name] for name in ("Allow", "Retry-After") if name in response.headers}
        return respond(request, Problem(status, code, detail, headers=kept))


_DETAILS = {
    400: "The request cannot be understood.",
    403: "That is not allowed.",
    404: "There is nothing at this path.",
    405: "This path does not take that method.",
    500: "Something broke on our side; the log names the request.",
}
