"""The sign-in page of the console and the admin."""

from __future__ import annotations

import structlog
from django.contrib.auth import authenticate, get_user_model, login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from detection.console import kept_forms
from detection.console.formatting import span
from detection.services.accounts import sign_in_throttle

log = structlog.get_logger(__name__)
WRONG = "Username or password is wrong."
MAX_NAME_CHARACTERS, MAX_PASSWORD_CHARACTERS = 150, 1000


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
        return render(request, "console/sign_in.html", context)
    username = request.POST.get("username", "")[:MAX_NAME_CHARACTERS]
    password = request.POST.get("password", "")[:MAX_PASSWORD_CHARACTERS]
    address = getattr(request, "client_address", None) or request.META.get("REMOTE_ADDR", "")
    wait = sign_in_throttle.wait_seconds(username, address)
    if wait:
        context |= {
            "username": username,
            "error": f"Too many attempts. Retry in {span(wait)}.",
        }
        answer = render(request, "console/sign_in.html", context, status=429)
        answer.headers["Retry-After"] = str(wait)
        return answer
    user = authenticate(request, username=username, password=password)
    if user is None:
        sign_in_throttle.failed(username, address)
        log.warning("sign_in_failed", username=username, address=address)
        return render(
            request, "console/sign_in.html", context | {"username": username, "error": WRONG}, status=422
        )
    sign_in_throttle.succeeded(username, address)
    login(request, user)
    log.info("signed_in", username=get_user_model().get_username(user), address=address)
    return _signed_in(request, kept, after)


def _signed_in(request: HttpRequest, kept: str, after: str) -> HttpResponse:
    """Show the form that was sent without a sign-in, or open the page."""
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
