"""Links that set a new password: requested by mail where a mail server is configured, and opened by the person."""

from __future__ import annotations

from functools import partial
from smtplib import SMTPException
from typing import Any

import structlog
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.views import PasswordResetConfirmView
from django.core.mail import send_mail
from django.db import DatabaseError, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.background_publisher import BackgroundPublisher
from detection.console.accounts.sign_in import MAX_PASSWORD_CHARACTERS, address_of, too_many
from detection.services.accounts import passwords, sign_in_throttle
from detection.services.audit import Actor

log = structlog.get_logger(__name__)
MAX_MAILED = 5
"""Maximum number of accounts per email address that get a link."""
# Sent in the background, so that a response takes the same time whether or not the account exists.
mailer = BackgroundPublisher("password_mail", max_queued=100)
_SENT = "If an account has this address, a link has been sent to it."


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def forgotten(request: HttpRequest) -> HttpResponse:
    """Ask for the address of an account and send a link there; without a mail server, say whom to ask."""
    context: dict[str, Any] = {"sends_mail": bool(settings.EMAIL_HOST), "error": ""}
    if request.method != "POST":
        return render(request, "accounts/forgotten.html", context)
    if not settings.EMAIL_HOST:
        raise Http404
    form = PasswordResetForm(request.POST)
    if not form.is_valid():
        context["error"] = "Enter an address such as ana@example.org."
        return render(request, "accounts/forgotten.html", context, status=422)
    email, address = form.cleaned_data["email"], address_of(request)
    counted = f"password reset of {email}"
    attempt = sign_in_throttle.begin(counted, address)
    if attempt.wait_seconds:
        return too_many(request, "accounts/forgotten.html", context, attempt.wait_seconds)
    actor = Actor("password reset", None, address or None, getattr(request, "request_id", ""))
    mailer.enqueue(email, partial(_send, email, actor))
    messages.success(request, _SENT)
    return redirect("console:sign_in")


def _send(email: str, actor: Actor, _: list[Any]) -> None:
    try:
        for user in [*PasswordResetForm().get_users(email)][:MAX_MAILED]:
            link = passwords.create_reset_link(user, actor)
            hours = settings.PASSWORD_RESET_TIMEOUT // 3600
            text = (
                f"A new password was requested for your account {user.get_username()} at {settings.PUBLIC_URL}.\n\n"
                f"To choose one, open this link within {hours} hours. It works once:\n\n{link}\n\n"
                "If you did not request this, ignore this message: your password does not change."
            )
            send_mail("New password for LoopGuard", text, None, [user.email])
    except (OSError, SMTPException, DatabaseError) as error:
        log.warning("password_mail_failed", error=str(error)[:200])
    finally:
        connections.close_all()


@method_decorator(require_http_methods(["GET", "HEAD", "POST"]), name="dispatch")
class ResetPassword(PasswordResetConfirmView):
    """The page behind a link: Django checks its token and removes it from the address."""

    template_name = "accounts/reset_password.html"
    success_url = reverse_lazy("console:sign_in")
    reset_url_token = "set-password"  # noqa: S105 (part of an address)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Return the context of the page."""
        return super().get_context_data(max_password=MAX_PASSWORD_CHARACTERS, **kwargs)

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        """Return the page; 404 for a link that cannot be used, 422 for a password that is not accepted."""
        if not self.validlink:
            kwargs["status"] = 404
        elif self.request.method == "POST":
            kwargs["status"] = 422
        return super().render_to_response(context, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        """Store the password, end all sign-ins of the person, and redirect to the sign-in page."""
        address = address_of(self.request)
        user: Any = self.user
        name = user.get_username()
        actor = Actor(name, user.pk, address or None, getattr(self.request, "request_id", ""))
        with transaction.atomic():
            # The lock makes a link that is sent twice at the same time work once.
            locked = get_user_model().objects.select_for_update().get(pk=user.pk)
            if locked.password != user.password:
                return redirect(self.request.path)
            passwords.set_password(locked, form.cleaned_data["new_password1"], actor, by="reset")
        self.request.session.pop("_password_reset_token", None)
        sign_in_throttle.forget(name, address)
        messages.success(self.request, "Password set. Sign in with it.")
        return redirect(self.get_success_url())


def reset(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
    """Show or carry out the form behind a link."""
    return ResetPassword.as_view()(request, **kwargs)
