"""A form that arrives twice is handled once: after a double click, a reload, or a retry after a lost response.

Each rendering of a form has a new CSRF token, so two requests of one person with the same token and fields
are the same submission. The second one waits for the first and gets its redirect.
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


def once(request: HttpRequest, respond: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """Respond to a form, or repeat the redirect of the same submission.

    A submission that failed, or that was answered by a page instead of a redirect, may be sent again.
    """
    key = _key(request)
    if not key:
        return respond()
    if not brief_records.claim(key, RUNNING_SECONDS):
        done = _outcome(key)
        if done is not None:
            messages.info(request, "This form was already submitted. It was processed once.")
            return HttpResponseRedirect(done["location"])
        brief_records.store(key, None, RUNNING_SECONDS)
    is_done = False
    try:
        response = respond()
        queued = getattr(get_messages(request), "_queued_messages", ())
        if isinstance(response, HttpResponseRedirect) and all(one.level < messages.WARNING for one in queued):
            brief_records.store(key, {"location": response.url}, REMEMBERED_SECONDS)
            is_done = True
        return response
    finally:
        if not is_done:
            brief_records.delete(key)


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
