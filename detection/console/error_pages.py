"""Error pages with the id of the request, without a stack trace. Below ``/api/``, problem documents replace them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import structlog
from django.contrib.auth import get_user
from django.core.exceptions import DisallowedHost
from django.db import InterfaceError, OperationalError
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.http.request import split_domain_port
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import Resolver404, resolve
from django.utils.encoding import escape_uri_path

from detection.console import kept_forms
from detection.strict_json import shorten
from detection.web.request_input import CheckedRequest, InvalidInput

log = structlog.get_logger(__name__)


def _answer(request: HttpRequest, status: int, title: str, detail: str) -> HttpResponse:
    request_id = getattr(request, "request_id", "")
    context = {"status": status, "title": title, "detail": detail, "request_id": request_id}
    return render(request, "console/error.html", context, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page for a request that is malformed."""
    if isinstance(exception, DisallowedHost):
        host, _ = split_domain_port(request.META.get("HTTP_HOST", ""))
        given = shorten(host or "The header `Host`")
        exception = InvalidInput(
            "invalid_host",
            f"{given} is not a host of this installation. Add it to LOOPGUARD_ALLOWED_HOSTS.",
        )
        cast("CheckedRequest", request).invalid_input = exception
    detail = getattr(exception, "detail", "The request is not valid.")
    return _answer(request, 400, "Bad request", detail)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page for an unknown address or another user's project."""
    return _answer(
        request,
        404,
        "Page not found",
        "The address may be wrong, the page may have been deleted, or you may not be a member of its project.",
    )


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page for a missing permission, and log the denial."""
    user = getattr(request, "user", None)  # requests of the API have none
    log.warning(
        "access_denied",
        username=user.get_username() if user is not None and user.is_authenticated else "",
        method=request.method,
        path=request.path[:200],
    )
    return _answer(request, 403, "Permission denied", "Your role in this project does not allow it.")


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Return the page for a form without a valid CSRF token.

    A form from one of LoopGuard's pages that was opened before the sign-in is kept, and the person sends it again
    with a fresh token.
    """
    user = getattr(request, "user", None) or get_user(request)
    is_form = request.path.startswith("/p/") and request.headers.get("Accept") != "application/json"
    if is_form and user.is_authenticated and kept_forms.is_own_page(request):
        kept = kept_forms.read(kept_forms.keep(request))
        if kept is not None:
            return kept_forms.show(request, kept, "This form was opened before you signed in.")
    return _answer(
        request,
        403,
        "Form expired",
        "The form was open for too long, or cookies are disabled. Go back, reload the page and submit it again.",
    )


def _page_above(path: str) -> str:
    """Return the nearest address above the one that a form is sent to, or the start page."""
    while path := path.rpartition("/")[0]:
        for one in (path, f"{path}/"):
            with suppress(Resolver404):
                resolve(one)
                return one
    return "/"


def _database_unavailable(request: HttpRequest) -> HttpResponse:
    """Return the page without what the others read from the database."""
    context = {
        "status": 503,
        "title": "Database unavailable",
        "detail": "LoopGuard cannot reach its database, or may not write to it. What you sent was not saved. Retry.",
        "request_id": getattr(request, "request_id", ""),
    }
    headers = {"Retry-After": "2"}
    return HttpResponse(render_to_string("console/error.html", context), status=503, headers=headers)


class MethodNotAllowedMiddleware:
    """Gives responses 405 a page: Django's are empty, and have no handler in the URL configuration.

    A page that shows a rejected form again has the address of the form. Opened later, it leads to the page of the form.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response; below ``/api/``, it becomes a problem document instead."""
        response = self.get_response(request)
        if not isinstance(response, HttpResponseNotAllowed) or request.path_info.startswith("/api/"):
            return response
        match = request.resolver_match
        if request.method in ("GET", "HEAD") and match is not None and match.namespace == "console":
            query = request.META.get("QUERY_STRING", "")
            return HttpResponseRedirect(
                escape_uri_path(_page_above(request.path_info)) + (f"?{query}" if query else "")
            )
        page = _answer(
            request,
            405,
            "Method not allowed",
            f"This address does not support {request.method}. Open the page that has the form, and submit it there.",
        )
        page.headers["Allow"] = response.headers["Allow"]
        return page


def server_error(request: HttpRequest) -> HttpResponse:
    """Return the page for an unexpected error, or while the database is unavailable."""
    error = sys.exception()
    if isinstance(error, (OperationalError, InterfaceError)):
        log.warning("database_unavailable", error=str(error)[:200])
        return _database_unavailable(request)
    return _answer(
        request,
        500,
        "Internal error",
        "The request failed on the server. Retry. If the error persists, search the server log for the request id.",
    )
