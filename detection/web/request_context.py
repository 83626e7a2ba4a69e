"""The id and client address of every request, also added to each log line during the request."""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Callable
from typing import cast

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from detection.sql.deadlines import deadline

HEADER = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")


class IdentifiedRequest(HttpRequest):
    """A request after `RequestContextMiddleware`.

    Attributes
    ----------
    request_id : str
        Sent back as `X-Request-ID` and in every log line.
    client_address : str or None
        IP address of the client.
    """

    request_id: str
    client_address: str | None


class RequestContextMiddleware:
    """Sets the id and the client address of each request; must be the first middleware.

    A client's own `X-Request-ID` is used if it has 8 to 64 letters, digits, dots, dashes or underscores. The client
    address is that of the connection, or, behind trusted proxies, the one that the outermost proxy saw.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self._trusted_proxies: int = settings.ENV.trusted_proxies

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response with the id in its `X-Request-ID` header."""
        identified = cast("IdentifiedRequest", request)
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = given if _ID.fullmatch(given) else _new_id()
        identified.request_id = request_id
        identified.client_address = client_address(request, self._trusted_proxies)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        with deadline(request.META.get("loopguard.deadline")):
            response = self.get_response(request)
        response.headers[HEADER] = request_id
        return response


def _new_id() -> str:
    """Return a new id. It need not be unguessable: reading random bytes from the kernel costs more than URL routing."""
    return f"req_{random.getrandbits(96):024x}"


def client_address(request: HttpRequest, trusted_proxies: int) -> str | None:
    """Return the client's address; entries of `X-Forwarded-For` beyond the trusted proxies are ignored."""
    peer = _address(request.META.get("REMOTE_ADDR") or "")
    if not trusted_proxies:
        return peer
    hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if hop.strip()]
    if len(hops) < trusted_proxies:
        return peer
    # Whoever reaches a process past its proxy may write anything there.
    return _address(hops[-trusted_proxies]) or peer


def _address(text: str) -> str | None:
    """Return the IP address of an entry without its port; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        # A zone, as in fe80::1%eth0, is nothing that the database stores.
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None
