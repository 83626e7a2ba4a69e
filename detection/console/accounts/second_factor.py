"""The page of the second factor: set up, recovery codes, disable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import segno
import structlog
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from detection.console.access import actor_of, own_page
from detection.console.accounts.account import check_password
from detection.console.accounts.sign_in import MAX_PASSWORD_CHARACTERS, address_of
from detection.engine.durations import relative
from detection.services.accounts import second_factor, sign_in_throttle
from detection.services.errors import Invalid, ServiceError

log = structlog.get_logger(__name__)
Codes = list[str]


@sensitive_post_parameters()
@never_cache
@own_page
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the state of the second factor, or carry out one of the forms."""
    if request.method != "POST":
        return _page(request)
    carry_out = ACTIONS.get(request.POST.get("action", ""))
    if carry_out is None:
        raise Http404
    try:
        codes = carry_out(request)
    except ServiceError as error:
        return _page(request, error=error)
    if codes:
        # Only in the response to the form, so a reload does not show them again.
        return _page(request, codes="\n".join(codes))
    return redirect("console:second_factor")


def _page(request: HttpRequest, **more: Any) -> HttpResponse:
    user_id = request.user.pk or 0
    device = second_factor.pending_device(user_id)
    enabled = second_factor.is_enabled(user_id)
    context = {
        "is_enabled": enabled,
        "codes_left": second_factor.recovery_codes_left(user_id),
        "max_password": MAX_PASSWORD_CHARACTERS,
        "max_code": second_factor.MAX_CODE_CHARACTERS,
        **more,
    }
    if device is not None and not enabled:
        # Black on white in both themes, which cameras expect; the border is part of it.
        code = segno.make(device.config_url, error="m")
        context["qr_code"] = code.svg_data_uri(scale=4, border=3, light="#fff", dark="#000")
        context["text_key"] = second_factor.text_key(device)
    error = more.get("error")
    return render(request, "accounts/second_factor.html", context, status=error.status if error else 200)


def _begin(request: HttpRequest) -> None:
    check_password(request)
    second_factor.begin(request.user)


def _confirm(request: HttpRequest) -> Codes:
    username, address = request.user.get_username(), address_of(request)
    given = request.POST.get("code", "")[: second_factor.MAX_CODE_CHARACTERS]
    key = request.session.session_key or ""
    attempt = sign_in_throttle.begin(username, address)
    if attempt.wait_seconds:
        raise Invalid(f"Too many attempts. Retry {relative(-attempt.wait_seconds)}.", field="code")
    codes = second_factor.confirm(request.user, given, actor_of(request), keep_session=key)
    attempt.withdraw()
    request.session[second_factor.SESSION_KEY] = True
    messages.success(request, "Second factor enabled. You are signed out everywhere else.")
    return codes


def _new_codes(request: HttpRequest) -> Codes:
    check_password(request)
    return second_factor.create_recovery_codes(request.user, actor_of(request))


def _disable(request: HttpRequest) -> None:
    check_password(request)
    key = request.session.session_key or ""
    second_factor.disable(request.user, actor_of(request), keep_session=key)
    request.session.pop(second_factor.SESSION_KEY, None)
    messages.success(request, "Second factor disabled. You are signed out everywhere else.")


ACTIONS: dict[str, Callable[[HttpRequest], Codes | None]] = {
    "begin": _begin,
    "confirm": _confirm,
    "codes": _new_codes,
    "disable": _disable,
}
