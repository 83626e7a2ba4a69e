"""What every request carries: an id, the caller's address, and both in each line that is logged meanwhile."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

HEADER = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestContextMiddleware:
    """Names the request and says who asks, before anything else looks at it.

    A caller's own `X-Request-ID` is taken over when it is a plain word of 8 to 64 characters. The address is the
    connection's, or, behind the configured number of trusted proxies, the one that the outermost of them saw.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self._trusted_proxies: int = settings.ENV.trusted_proxies

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with the id on the response."""
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = given if _ID.fullmatch(given) else _new_id()
        request.request_id = request_id  # type: ignore[attr-defined]
        request.client_address = client_address(request, self._trusted_proxies)  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        response = self.get_response(request)
        response.headers[HEADER] = request_id
        return response


def _new_id() -> str:
    """Return an id that nobody has to be unable to guess; asking the kernel for one costs more than the whole routing."""
    return f"req_{random.getrandbits(96):024x}"


def client_address(request: HttpRequest, trusted_proxies: int) -> str | None:
    """Return the caller's address; what a caller writes into `X-Forwarded-For` himself does not count."""
    remote = request.META.get("REMOTE_ADDR") or ""
    if trusted_proxies:
        hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if hop.strip()]
        if len(hops) >= trusted_proxies:
            remote = hops[-trusted_proxies]
    return _without_port(remote)


def _without_port(address: str) -> str | None:
    if address.startswith("["):
        return address[1:].partition("]")[0] or None
    if address.count(":") == 1:
        address = address.partition(":")[0]
    return address or None
