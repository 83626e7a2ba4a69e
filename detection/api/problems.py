"""Errors as problem documents (RFC 9457), with a stable code and the field at fault; never a page of HTML."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal

import orjson
import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from detection.api import otlp_responses, prometheus
from detection.api.requests import as_api_request
from detection.filtering.language import FilterError
from detection.selectors.pages import BadCursor
from detection.services.errors import ServiceError, SessionBusy
from detection.services.ingestion.attempts import recorder
from detection.services.keys import Principal
from detection.services.storage.disk_space import disk_monitor
from detection.services.versions import ChangedMeanwhile, version_of
from detection.sql.postgresql.base import DeadlinePassed
from detection.strict_json import JsonProblem, join

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"
GuardMiss = Literal["waiting", "running", "database", "session"]

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
"""The SQLSTATE of PostgreSQL. Other errors of its class, memory and connections, are temporary: 503 `unavailable`."""
DEADLINE_PASSED = "The request was not answered within its deadline."
STATUS_OF_JSON_CODE = {"not_json": 400}


class Problem(Exception):
    """An error response.

    Parameters
    ----------
    status
        HTTP status.
    code
        Stable, in snake case.
    path
        The field at fault, as in ``calls[0].tool``.
    errors
        If there are several: ``{"path", "code", "hint"}`` of each.
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
    """Return the problem of a JSON error; `prefix` is the path of the parsed value."""
    status = STATUS_OF_JSON_CODE.get(problem.code, 422)
    return Problem(status, problem.code, problem.detail, path=join(prefix, problem.path))


def respond(request: HttpRequest, problem: Problem) -> HttpResponse:
    """Return the response of a problem."""
    as_api_request(request).has_problem = True
    status, content_type, body = rendered(
        problem,
        getattr(request, "request_id", ""),
        request.path_info,
        request.META.get("CONTENT_TYPE", ""),
    )
    return HttpResponse(body, status=status, content_type=content_type, headers=headers_of(problem, status))


def rendered(problem: Problem, request_id: str, path: str, content_type: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of the response to a problem, as the sender of the request expects them.

    Parameters
    ----------
    path, content_type
        Of the request.
    """
    if not otlp_responses.is_otlp(path):
        return problem.status, CONTENT_TYPE, document_of(problem, request_id)
    body, kind = otlp_responses.error(problem.status, problem.code, problem.detail, content_type)
    return otlp_responses.http_status(problem.status), kind, body


def document_of(problem: Problem, request_id: str) -> bytes:
    """Return the problem document."""
    document: dict[str, object] = {
        "type": f"/api/v1/docs#{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "request_id": request_id,
    }
    if problem.path:
        document["path"] = problem.path
    if problem.errors:
        document["errors"] = problem.errors
    return orjson.dumps(document)


def headers_of(problem: Problem, status: int) -> dict[str, str]:
    """Return the headers of the response to a problem; its status depends on who reads it."""
    headers = dict(problem.headers)
    if status in (429, 503):
        # Spread out, so that clients do not retry at the same moment.
        headers.setdefault("Retry-After", str(random.randint(1, 3)))  # noqa: S311
    return headers


def unavailable(detail: str) -> Problem:
    """Return the problem of a request that could not be answered in time."""
    return Problem(503, "unavailable", detail)


def storage_full() -> Problem:
    """Return the problem of a full disk, which takes a person or retention a while to fix."""
    return Problem(
        503,
        "storage_full",
        "The database disk is nearly full, so events are not accepted. Everything else works.",
        headers={"Retry-After": str(random.randint(10, 20))},  # noqa: S311 - spread out, as above
    )


def check_disk_space() -> None:
    """Reject events before anything is written if the disk of the database is nearly full.

    Raises
    ------
    Problem
        503 `storage_full`.
    """
    if disk_monitor.is_full():
        raise storage_full()


def of_exception(error: Exception) -> Problem:
    """Return the problem of an exception; an unexpected one is logged and becomes a 500."""
    if isinstance(error, HttpError) and isinstance(error.__cause__, Problem):
        return error.__cause__
    if isinstance(error, Problem):
        return error
    if isinstance(error, JsonProblem):
        return of_json(error)
    if isinstance(error, ChangedMeanwhile):
        return Problem(
            412,
            error.code,
            "The object has changed since the version in `If-Match`. Get it again and send its new version.",
            headers={"ETag": f'"{version_of(error.current)}"'},
        )
    if isinstance(error, ServiceError):
        return Problem(error.status, error.code, error.detail, path=error.field)
    if isinstance(error, FilterError):
        return Problem(422, "invalid_filter", error.detail, path="q")
    if isinstance(error, BadCursor):
        return Problem(422, "invalid_cursor", str(error), path="cursor")
    if isinstance(error, ValidationError):
        return _of_validation(error)
    if isinstance(error, Http404):
        return Problem(404, "not_found", "Not found.")
    if isinstance(error, HttpError):
        return Problem(error.status_code, CODE_OF_STATUS.get(error.status_code, "rejected"), str(error))
    problem = _of_database(error) if isinstance(error, (DatabaseError, InterfaceError)) else None
    if problem is None:
        log.error("unexpected_error", exc_info=error)
    return problem or Problem(
        500, "internal_error", "Internal error. The log has the details for this request id."
    )


def _of_database(error: Exception) -> Problem | None:
    """Return the problem of a database error; None if the statement itself was wrong."""
    if getattr(error.__cause__, "sqlstate", None) == _DISK_FULL:
        log.error("database_disk_full", error=str(error)[:200])
        return storage_full()
    if isinstance(error.__cause__, DeadlinePassed):
        log.warning("deadline_passed", error=str(error)[:200])
        return unavailable(DEADLINE_PASSED)
    if isinstance(error, (OperationalError, InterfaceError)):
        log.warning("database_unavailable", error=str(error)[:200])
        return unavailable("The database is unavailable. Try again.")
    if isinstance(error, IntegrityError):
        log.warning("write_conflict", error=str(error)[:200])
        return Problem(409, "conflict", "The object was changed at the same time. Try again.")
    return None


def _of_validation(error: ValidationError) -> Problem:
    errors = []
    for item in error.errors[:20]:
        source, *steps = [step for step in item["loc"] if step != "body_params"]
        path = ""
        for step in steps if source != "body" else steps[1:]:
            path = join(path, f"[{step}]" if isinstance(step, int) else str(step)[:60])
        code = {"missing": "missing", "extra_forbidden": "unknown_field"}.get(item["type"], "invalid")
        errors.append({"path": path, "code": code, "hint": _hint(item)[:200]})
    first = errors[0]
    detail = f"`{first['path']}`: {first['hint']}" if first["path"] else first["hint"]
    return Problem(422, first["code"], detail, path=first["path"], errors=errors)


def _hint(item: dict[str, object]) -> str:
    """Return what is wrong with a field and what is allowed, as a sentence."""
    if item["type"] == "missing":
        return "Required."
    if item["type"] == "extra_forbidden":
        return "Unknown field."
    text = str(item["msg"]).removeprefix("Value error, ").replace("Input should", "Must")
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def install(api: NinjaAPI) -> None:
    """Turn every exception in a route into a problem document."""

    def handle(request: HttpRequest, error: Any) -> HttpResponse:
        problem = of_exception(error)
        if getattr(request, "attempt", "") == "guard" and problem.code == "unavailable":
            reason: GuardMiss = "session" if isinstance(error, SessionBusy) else "database"
            if isinstance(error.__cause__, DeadlinePassed):
                reason = "running"
            note_missed_guard(reason, problem, getattr(request, "principal", None))
        else:
            _note(request, problem)
        return respond(request, problem)

    for kind in (Exception, Http404, HttpError, ValidationError):
        api.add_exception_handler(kind, handle)


def _note(request: HttpRequest, problem: Problem) -> None:
    """Count an error of the routes that agents use, and show it on the Connect screen."""
    route = getattr(request, "attempt", "")
    if not route:
        return
    principal = getattr(request, "principal", None)
    prometheus.REQUESTS.labels(route, str(problem.status), problem.code).inc()
    recorder.note(
        principal.project_id if principal else None,
        route,
        problem.status,
        problem.code,
        f"{problem.path}: {problem.detail}" if problem.path else problem.detail,
        f"lg_{principal.public_id}" if principal else getattr(request, "key_hint", ""),
    )


def note_missed_guard(reason: GuardMiss, problem: Problem, principal: Principal | None) -> None:
    """Count a guard request that was not answered in time, and show it on the Connect screen."""
    prometheus.GUARD_MISSES.labels(reason).inc()
    prometheus.REQUESTS.labels("guard", str(problem.status), problem.code).inc()
    recorder.note(
        principal.project_id if principal else None,
        "guard",
        problem.status,
        problem.code,
        problem.detail,
        f"lg_{principal.public_id}" if principal else "",
        rejected=1,
    )


class ProblemMiddleware:
    """Turns errors outside of routes (unknown path, method or host) into problem documents, too."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response; outside ``/api/``, only that of a program which has missed the address is changed."""
        response = self.get_response(request)
        status = response.status_code
        if status < 400 or hasattr(request, "has_problem"):
            return response
        if not request.path_info.startswith("/api/"):
            if status != 404 or request.content_type != "application/json":
                return response
            return respond(request, Problem(404, "not_found", _elsewhere()))
        code = CODE_OF_STATUS.get(status, "rejected")
        detail = _DETAILS.get(status, HTTPStatus(status).phrase)
        invalid = getattr(request, "invalid_input", None)
        if invalid is not None:
            code, detail = invalid.code, invalid.detail
        kept = {name: response.headers[name] for name in ("Allow", "Retry-After") if name in response.headers}
        return respond(request, Problem(status, code, detail, headers=kept))


def _elsewhere() -> str:
    api, gateway = f"{settings.PUBLIC_URL}/api/v1", f"{settings.LIVE_URL}/gateway"
    return f"Nothing is at this path. The API is below {api}, and the gateway below {gateway}."


_DETAILS = {
    400: "The request is not valid.",
    403: "Permission denied.",
    404: "Not found.",
    405: "The path does not support this method.",
    500: "Internal error. The log has the details for this request id.",
}
