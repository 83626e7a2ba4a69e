"""The sign-in of the console and the admin: a password, and a code where the account has a second factor."""

from __future__ import annotations

import time
from typing import Any

import structlog
from django.contrib.auth import authenticate, get_user_model, login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from detection.console import kept_forms
from detection.engine.durations import relative
from detection.services.accounts import second_factor, sign_in_throttle

log = structlog.get_logger(__name__)
WRONG = "Username or password is wrong."
MAX_NAME_CHARACTERS, MAX_PASSWORD_CHARACTERS = 150, 1000
PENDING = "pending_sign_in"
PENDING_SECONDS = 600.0


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Show the form, or check a login. Unknown accounts get the same response after the same work."""
    after = _after(request)
    kept = request.POST.get("kept", "")
    if request.user.is_authenticated:
        return _signed_in(request, kept, after)
    wanted = request.POST.get("next", request.GET.get("next", ""))
    context = {"next": wanted, "kept": kept, "username": "", "error": ""}
    if request.method != "POST":
        return render(request, "accounts/sign_in.html", context)
    username = request.POST.get("username", "")[:MAX_NAME_CHARACTERS]
    password = request.POST.get("password", "")[:MAX_PASSWORD_CHARACTERS]
    address = address_of(request)
    context["username"] = username
    attempt = sign_in_throttle.begin(username, address)
    if attempt.wait_seconds:
        return too_many(request, "accounts/sign_in.html", context, attempt.wait_seconds)
    user = authenticate(request, username=username, password=password)
    if user is None:
        log.warning("sign_in_failed", username=username, address=address)
        return render(request, "accounts/sign_in.html", context | {"error": WRONG}, status=422)
    attempt.withdraw()
    if second_factor.is_enabled(user.pk):
        request.session[PENDING] = {
            "user": user.pk,
            "backend": user.backend,
            "password": user.get_session_auth_hash(),
            "until": time.time() + PENDING_SECONDS,
            "after": after,
            "kept": kept,
        }
        return redirect("console:sign_in_code")
    sign_in_throttle.forget(username, address)
    login(request, user)
    log.info("signed_in", username=get_user_model().get_username(user), address=address)
    return _signed_in(request, kept, after)


@sensitive_post_parameters("code")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def code(request: HttpRequest) -> HttpResponse:
    """Ask for the code after the password, or check it."""
    pending = request.session.get(PENDING)
    user = _pending_user(pending) if pending else None
    if pending is None or user is None or not second_factor.is_enabled(user.pk):
        request.session.pop(PENDING, None)
        return redirect("console:sign_in")
    context: dict[str, Any] = {"error": "", "max_code": second_factor.MAX_CODE_CHARACTERS}
    if request.method != "POST":
        return render(request, "accounts/sign_in_code.html", context)
    username, address = user.get_username(), address_of(request)
    given = request.POST.get("code", "")[: second_factor.MAX_CODE_CHARACTERS]
    attempt = sign_in_throttle.begin(username, address)
    if attempt.wait_seconds:
        return too_many(request, "accounts/sign_in_code.html", context, attempt.wait_seconds)
    if not second_factor.verify(user, given):
        log.warning("second_factor_failed", username=username, address=address)
        context["error"] = second_factor.WRONG_CODE
        return render(request, "accounts/sign_in_code.html", context, status=422)
    attempt.withdraw()
    sign_in_throttle.forget(username, address)
    del request.session[PENDING]
    login(request, user, backend=pending["backend"])
    request.session[second_factor.SESSION_KEY] = True
    log.info("signed_in", username=username, address=address, second_factor=True)
    return _signed_in(request, pending["kept"], pending["after"])


def _pending_user(pending: dict[str, Any]) -> Any:
    """Return the person who entered the right password, unless that was too long ago or it has changed since."""
    user = get_user_model().objects.filter(pk=pending["user"], is_active=True).first()
    if user is None or pending["until"] < time.time():
        return None
    return user if constant_time_compare(pending["password"], user.get_session_auth_hash()) else None


def address_of(request: HttpRequest) -> str:
    """Return the client's address, by which attempts are counted."""
    return str(getattr(request, "client_address", None) or request.META.get("REMOTE_ADDR", ""))


def too_many(request: HttpRequest, template: str, context: dict[str, Any], wait: int) -> HttpResponse:
    """Return a form whose attempts are throttled, with the time to wait."""
    context = context | {"error": f"Too many attempts. Retry {relative(-wait)}."}
    answer = render(request, template, context, status=429)
    answer.headers["Retry-After"] = str(wait)
    return answer


def _signed_in(request: HttpRequest, kept: str, after: str) -> HttpResponse:
    """Show the form that was kept at sign-out, or open the page."""
    form = kept_forms.read(kept) if kept else None
    if form is None:
        return HttpResponseRedirect(after)
    return kept_forms.show(request, form, "You were signed out when you sent this form.")


def _after(request: HttpRequest) -> str:
    """Return the address to open after signing in; only addresses of this site are accepted."""
    wanted = request.POST.get("next", request.GET.get("next", ""))
    if wanted and url_has_allowed_host_and_scheme(
        wanted, {request.get_host()}, require_https=request.is_secure()
    ):
        return wanted
    return reverse("console:home")
