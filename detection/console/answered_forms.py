"""Which form the server has answered, for the page that keeps a draft of its text."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse

from detection.console.single_submission import REMEMBERED_SECONDS, is_accepted

COOKIE = "loopguard-answered"
_WITH_THE_FORM = frozenset((200, 409, 422))
"""Status of pages that show a form again with what was typed."""
_TOKEN = re.compile(r"([0-9A-Za-z]{32})[0-9A-Za-z]{32}")


def form_id(request: HttpRequest) -> str:
    """Return the first half of a form's CSRF token: new for each rendering, and no secret without the other half."""
    token = _TOKEN.fullmatch(request.POST.get("csrfmiddlewaretoken", ""))
    return token[1] if token else ""


class AnsweredFormMiddleware:
    """Names an answered form in a cookie, so that the next page forgets its draft.

    Answered is a form with a redirect, or with a page that shows it again. Not so where the text is lost: a sign-in
    comes first, an error follows the redirect, or the page is one of an error.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response, with the cookie if it answers a form of a page."""
        response = self.get_response(request)
        is_page = not request.path_info.startswith("/api/") and "HX-Request" not in request.headers
        if request.method == "POST" and is_page and (name := form_id(request)):
            leads_to_sign_in = isinstance(response, HttpResponseRedirect) and response.url.startswith(
                reverse("console:sign_in")
            )
            is_accepted_now = is_accepted(request, response) and not leads_to_sign_in
            if is_accepted_now or response.status_code in _WITH_THE_FORM:
                response.set_cookie(
                    COOKIE, name, max_age=REMEMBERED_SECONDS, secure=request.is_secure(), samesite="Lax"
                )
        return response
