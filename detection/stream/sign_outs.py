"""Closes a person's sockets when they sign out, whether from the console or the admin."""

from __future__ import annotations

from django.contrib.auth.signals import user_logged_out
from django.dispatch import receiver
from django.http import HttpRequest

from detection.stream.publisher import publish_sign_out


@receiver(user_logged_out, dispatch_uid="detection.sockets")
def _close_sockets(request: HttpRequest | None, **_: object) -> None:
    if request is not None and request.session.session_key:
        publish_sign_out(request.session.session_key)
