"""Error pages: what failed and what to do, with the id of the request; never a stack trace.

The API has its own problem documents; a path below ``/api/`` that matches nothing gets one of those, not a page.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render


def _answer(request: HttpRequest, status: int, code: str, title: str, detail: str) -> HttpResponse:
    request_id = getattr(request, "request_id", "")
    if request.path.startswith("/api/"):
        problem = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "code": code,
            "detail": detail,
            "request_id": request_id,
        }
        return JsonResponse(problem, status=status, content_type="application/problem+json")
    context = {"status": status, "title": title, "detail": detail, "request_id": request_id}
    return render(request, "console/error.html", context, status=status)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer for what does not exist, or is none of the reader's business."""
    return _answer(
        request,
        404,
        "not_found",
        "There is nothing here",
        "The address may be mistyped, what it led to may have been removed, or it belongs to a project you are not a member of.",
    )


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer for what the reader may not do."""
    return _answer(
        request, 403, "forbidden", "You may not do that", "Your role in this project does not allow it."
    )


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer for a form that did not come from our own page."""
    return _answer(
        request,
        403,
        "csrf_failed",
        "This form is out of date",
        "It was open for too long, or cookies are switched off. Go back, reload the page and send it again.",
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer when something of ours broke."""
    return _answer(
        request,
        500,
        "internal_error",
        "Something broke on our side",
        "Nothing you did was wrong. Try again; if it stays, look for the request id in the log of the server.",
    )
