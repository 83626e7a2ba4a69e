"""The Account page: password, email address, second factor and sign-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import structlog
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from detection.console.access import actor_of, own_page
from detection.console.accounts.device_names import device_name
from detection.console.accounts.sign_in import MAX_PASSWORD_CHARACTERS, address_of
from detection.engine.durations import relative
from detection.models import SignIn
from detection.services.accounts import passwords, second_factor, sign_in_throttle, sign_ins
from detection.services.errors import Invalid, ServiceError

log = structlog.get_logger(__name__)
MAX_SHOWN = 100
MAX_EMAIL_CHARACTERS = 254
WRONG_PASSWORD = "The current password is wrong."  # noqa: S105 (a message)


@sensitive_post_parameters()
@never_cache
@own_page
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the account, or carry out one of its forms."""
    if request.method != "POST":
        return _page(request)
    carry_out = ACTIONS.get(request.POST.get("action", ""))
    if carry_out is None:
        raise Http404
    try:
        carry_out(request)
    except ServiceError as error:
        return _page(request, error=error)
    return redirect("console:account")


def _page(request: HttpRequest, error: ServiceError | None = None) -> HttpResponse:
    user = request.user
    rows = SignIn.objects.filter(user_id=user.pk or 0)[:MAX_SHOWN]
    current = request.session.session_key
    context = {
        "error": error,
        "given_email": request.POST.get("email", getattr(user, "email", ""))[:MAX_EMAIL_CHARACTERS],
        "max_email": MAX_EMAIL_CHARACTERS,
        "max_password": MAX_PASSWORD_CHARACTERS,
        "sends_mail": bool(settings.EMAIL_HOST),
        "has_second_factor": second_factor.is_enabled(user.pk or 0),
        "codes_left": second_factor.recovery_codes_left(user.pk or 0),
        "sign_ins": [(row, device_name(row.agent), row.session_id == current) for row in rows],
    }
    return render(request, "accounts/account.html", context, status=error.status if error else 200)


def check_password(request: HttpRequest, field: str = "password") -> None:
    """Check the current password that a form asks for; wrong ones are throttled like failed sign-ins.

    Raises
    ------
    Invalid
        For a wrong password, and while the next attempt has to wait.
    """
    username, address = request.user.get_username(), address_of(request)
    given = request.POST.get(field, "")[:MAX_PASSWORD_CHARACTERS]
    attempt = sign_in_throttle.begin(username, address)
    if attempt.wait_seconds:
        raise Invalid(f"Too many attempts. Retry {relative(-attempt.wait_seconds)}.", field=field)
    if not (request.user.is_authenticated and request.user.check_password(given)):
        log.warning("password_check_failed", username=username, address=address)
        raise Invalid(WRONG_PASSWORD, field=field)
    attempt.withdraw()
    sign_in_throttle.forget(username, address)


def _change_password(request: HttpRequest) -> None:
    check_password(request, "old_password")
    form: Any = PasswordChangeForm(cast("Any", request.user), request.POST)
    if not form.is_valid():
        field, errors = next(iter(form.errors.items()))
        raise Invalid(" ".join(errors), field=field)
    key = request.session.session_key or ""
    passwords.set_password(
        request.user, form.cleaned_data["new_password1"], actor_of(request), keep_session=key
    )
    update_session_auth_hash(request, form.user)
    messages.success(request, "Password changed. You are signed out everywhere else.")


def _change_email(request: HttpRequest) -> None:
    check_password(request, "email_password")
    email = request.POST.get("email", "").strip()[: MAX_EMAIL_CHARACTERS + 1]
    if email:
        try:
            validate_email(email)
        except ValidationError as error:
            raise Invalid(
                "`email` must be an email address such as ana@example.org.", field="email"
            ) from error
    passwords.set_email(request.user, email, actor_of(request))
    messages.success(request, "Email address saved." if email else "Email address removed.")


def _end_sign_in(request: HttpRequest) -> None:
    sign_ins.end_sign_in(request.user.pk or 0, request.POST.get("sign_in", "")[:16], actor_of(request))
    messages.success(request, "Signed out of that browser.")


def _end_others(request: HttpRequest) -> None:
    key = request.session.session_key or ""
    ended = sign_ins.end_sign_ins(request.user.pk or 0, actor_of(request), except_session=key)
    messages.success(request, f"Signed out of {ended} other browser{'' if ended == 1 else 's'}.")


ACTIONS: dict[str, Callable[[HttpRequest], None]] = {
    "password": _change_password,
    "email": _change_email,
    "end": _end_sign_in,
    "end_others": _end_others,
}


class SignInMiddleware:
    """Notes where people are signed in, at most once a minute, for the list on the Account page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the response, and note the sign-in of a request that used one."""
        response = self.get_response(request)
        if request.session.accessed and request.session.session_key and request.user.is_authenticated:
            agent = request.headers.get("User-Agent", "")
            address = getattr(request, "client_address", None)
            sign_ins.note_seen(request.session.session_key, request.user.pk or 0, agent, address)
        return response
