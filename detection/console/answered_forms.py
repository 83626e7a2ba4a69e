"""Which form the server has answered, for the page that keeps a draft of its text."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect

from detection.console.single_submission import REMEMBERED_SECONDS, is_accepted

COOKIE = "loopguard-answered"
_TOKEN = re.compile(r"([0-9A-Za-z]{32})[0-9A-Za-z]{32}")


def form_id(request: HttpRequest) -> str:
    """Return the first half of a form's CSRF token: new for each rendering, and no secret without the other half."""
    token = _TOKEN.fullmatch(request.POST.get("csrfmiddlewaretoken", ""))
    return token[1] if token else ""


class AnsweredFormMiddleware:
    """Names an answered form in a cookie, so that the next page forgets its draft.

    Not answered are a form that waits for a sign-in, and one with a redirect to an error: that page has lost the text,
    and restores it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response, with the cookie if it answers a form of a page."""
        response = self.get_response(request)
        is_page = not request.path_info.startswith("/api/") and "HX-Request" not in request.headers
        if request.method == "POST" and is_page and (name := form_id(request)):
            is_shown = not isinstance(response, HttpResponseRedirect) and response.status_code < 500
            if is_accepted(request, response) or (is_shown and response.status_code != 401):
                response.set_cookie(
                    COOKIE, name, max_age=REMEMBERED_SECONDS, secure=request.is_secure(), samesite="Lax"
                )
        return response
