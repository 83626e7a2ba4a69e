"""A form that arrives twice is handled once: after a double click, a reload, or a retry after a lost response.

Each rendering of a form has a new CSRF token, so two requests of one person with the same token and fields
are the same submission. The second one waits for the first and gets its redirect, or the page without the secret that
the first one showed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.messages import get_messages
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect

from detection.services import brief_records

RUNNING_SECONDS, REMEMBERED_SECONDS = 60, 600
WAIT_SECONDS, POLL_SECONDS = 10.0, 0.1
_NEXT_PAGE = "page_after_secret"


def once(request: HttpRequest, respond: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """Respond to a form, or repeat the redirect of the same submission.

    A submission that failed, or that was answered by a page that shows no secret, may be sent again.
    """
    key = _key(request)
    if not key:
        return respond()
    if not brief_records.claim(key, RUNNING_SECONDS):
        done = _outcome(key)
        if done is not None:
            note = " What it showed is not shown again." if done.get("had_secret") else ""
            messages.info(request, f"This form was already submitted. It was processed once.{note}")
            return HttpResponseRedirect(done["location"])
        brief_records.store(key, None, RUNNING_SECONDS)
    is_done = False
    try:
        response = respond()
        after_secret = location = getattr(request, _NEXT_PAGE, "")
        if is_accepted(request, response):
            location = response.headers["Location"]
        if location:
            outcome = {"location": location, "had_secret": bool(after_secret)}
            brief_records.store(key, outcome, REMEMBERED_SECONDS)
            is_done = True
        return response
    finally:
        if not is_done:
            brief_records.delete(key)


def shows_secret(request: HttpRequest, page: str = "") -> None:
    """Note that the response to a form shows a secret, which only it does.

    Parameters
    ----------
    page
        Where the same submission leads; empty for the address of the form.
    """
    setattr(request, _NEXT_PAGE, page or request.get_full_path())


def is_accepted(request: HttpRequest, response: HttpResponseBase) -> bool:
    """Whether a form was answered by a redirect, without a warning or an error on the page that follows."""
    queued = getattr(get_messages(request), "_queued_messages", ())
    return isinstance(response, HttpResponseRedirect) and all(one.level < messages.WARNING for one in queued)


def _key(request: HttpRequest) -> str:
    token = request.POST.get("csrfmiddlewaretoken", "")
    if not token or request.FILES:
        return ""
    return brief_records.key_of(
        "form", request.user.pk, request.get_full_path(), sorted((k, v) for k, v in request.POST.lists())
    )


def _outcome(key: str) -> dict[str, Any] | None:
    """Wait for the outcome of the first submission; None if it failed or did not end in time."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        is_known, value = brief_records.load(key)
        if not is_known:
            return None
        if value is not None:
            return dict(value)
        time.sleep(POLL_SECONDS)
    return None
