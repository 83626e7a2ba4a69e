"""Which form the server has answered, for the page that keeps a draft of its text."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect

from detection.console.single_submission import REMEMBERED_SECONDS, is_accepted

COOKIE = "loopguard-answered"
_TOKEN = re.compile(r"([0-9A-Za-z]{32})[0-9A-Za-z]{32}")
"""A CSRF token. Its first half is new for each rendering of a form, and no secret without the other half."""


class AnsweredFormMiddleware:
    """Names an answered form in a cookie, so that the next page forgets its draft.

    A redirect with an error names none: the page that follows has lost the text, and restores it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response, with the cookie if it answers a form of a page."""
        response = self.get_response(request)
        is_page = not request.path_info.startswith("/api/") and "HX-Request" not in request.headers
        if request.method != "POST" or not is_page or response.status_code >= 500:
            return response
        token = _TOKEN.fullmatch(request.POST.get("csrfmiddlewaretoken", ""))
        if token and (is_accepted(request, response) or not isinstance(response, HttpResponseRedirect)):
            response.set_cookie(
                COOKIE, token[1], max_age=REMEMBERED_SECONDS, secure=request.is_secure(), samesite="Lax"
            )
        return response
