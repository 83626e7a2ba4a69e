"""Middleware that only pages need: sessions of people who are signed in, and the messages that they are shown.

A request of the API identifies itself by its key, and agents wait for its response.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.http import HttpRequest

from detection.console.accounts import account


class _ForPages:
    """Passes on requests of the API that name a key."""

    get_response: Any

    def __call__(self, request: HttpRequest) -> Any:
        if "HTTP_AUTHORIZATION" in request.META and request.path_info.startswith("/api/"):
            return self.get_response(request)
        return super().__call__(request)  # type: ignore[misc]


class SessionMiddleware(_ForPages, sessions.SessionMiddleware):
    """Provides the session of a browser."""


class AuthenticationMiddleware(_ForPages, auth.AuthenticationMiddleware):
    """Provides the person who is signed in."""


class PageSignInMiddleware(_ForPages, account.SignInMiddleware):
    """Notes where people are signed in."""


class MessageMiddleware(_ForPages, messages.MessageMiddleware):
    """Provides the messages that the next page shows."""
