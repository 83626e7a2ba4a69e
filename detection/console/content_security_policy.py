"""Middleware that sets a strict content security policy and related headers on every response."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

_BASE = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "object-src": "'none'",
}
# The theme of the admin sets styles by script, on elements and in a sheet of its colours.
_ADMIN = {"style-src": "'self' 'unsafe-inline'"}


def _written(directives: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def _sockets(live_url: str) -> tuple[str, ...]:
    """Return the origins of LoopGuard's sockets; a page opened as localhost uses that name, because of its cookies."""
    live = urlsplit(live_url)
    scheme = "wss" if live.scheme == "https" else "ws"
    if live.hostname not in ("127.0.0.1", "localhost"):
        return (f"{scheme}://{live.netloc}",)
    port = f":{live.port}" if live.port else ""
    return tuple(f"{scheme}://{host}{port}" for host in ("127.0.0.1", "localhost"))


class ContentSecurityPolicyMiddleware:
    """Adds the policy, and keeps pages with data out of shared caches.

    A policy that a view has already set is kept.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        base = _BASE | {"connect-src": " ".join(("'self'", *_sockets(settings.LIVE_URL)))}
        self._page, self._admin = _written(base), _written(base | _ADMIN)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response with the policy."""
        response = self.get_response(request)
        policy = self._admin if request.path.startswith("/admin/") else self._page
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
        if response.headers.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault("Cache-Control", "private, no-store")
        return response
