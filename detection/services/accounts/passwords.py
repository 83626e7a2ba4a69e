"""Passwords and email addresses: changes by their owner, and password reset links.

A link carries a token of Django: an HMAC over the account, its password and the last sign-in. It is not stored. It
works once, because the new password or a sign-in invalidates it, and only for `settings.PASSWORD_RESET_TIMEOUT`.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.tokens import default_token_generator
from django.db import transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from detection.services import audit
from detection.services.accounts import sign_ins
from detection.services.audit import Actor
from detection.services.errors import Conflict


@transaction.atomic
def set_password(
    user: Any, password: str, actor: Actor, *, keep_session: str = "", by: str = "change"
) -> None:
    """Store a checked password, and end the person's other sign-ins.

    Parameters
    ----------
    keep_session
        Key of the session of the request, which stays; empty ends all.
    by
        ``change`` or ``reset``, for the audit.
    """
    user.set_password(password)
    user.save(update_fields=["password"])
    audit.record(actor, f"account.password_{by}", user.get_username(), project_id=None)
    sign_ins.end_sign_ins(user.pk, actor, except_session=keep_session)


@transaction.atomic
def set_email(user: Any, email: str, actor: Actor) -> None:
    """Store a validated email address for password reset links; empty removes it."""
    before = user.email
    user.email = email
    user.save(update_fields=["email"])
    audit.record(
        actor,
        "account.email",
        user.get_username(),
        project_id=None,
        before={"email": before},
        after={"email": email},
    )


@transaction.atomic
def create_reset_link(user: Any, actor: Actor) -> str:
    """Return a one-time link for setting a new password.

    Raises
    ------
    Conflict
        ``account_disabled``.
    """
    if not user.is_active:
        raise Conflict("The account is disabled. Enable it first.", code="account_disabled")
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    path = reverse("console:reset_password", args=[uid, default_token_generator.make_token(user)])
    audit.record(actor, "account.reset_link", user.get_username(), project_id=None)
    return str(settings.PUBLIC_URL).rstrip("/") + path
