"""Allows only LoopGuard's own pages to open a socket.

Browsers send cookies with the sockets of any page, so the origin is checked against an explicit list before the session
is read. `ALLOWED_HOSTS` is not used for this.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import structlog
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    Scope,
    WebSocketScope,
)
from django.conf import settings

from detection.consumers.denials import deny

log = structlog.get_logger(__name__)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=64)
def origin_of(address: str) -> str | None:
    """Return the normalized origin of an address, or None.

    Parameters
    ----------
    address
        As sent in an ``Origin`` header, or one of LoopGuard's addresses.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc or port == 0:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or _PORTS[parts.scheme]}"


@lru_cache(maxsize=8)
def allowed_origins(public_url: str, mode: str) -> frozenset[str]:
    """Return the origins whose pages may open sockets.

    Parameters
    ----------
    public_url
        Address of the console.
    mode
        Outside production, all names of this machine are allowed.
    """
    own = urlsplit(public_url)
    addresses = [public_url]
    if mode != "production" and own.hostname in _LOOPBACK:
        port = f":{own.port}" if own.port else ""
        hosts = ("127.0.0.1", "localhost", "[::1]")
        addresses += [f"{own.scheme}://{host}{port}" for host in hosts]
    return frozenset(origin for origin in map(origin_of, addresses) if origin)


class OriginGate:
    """ASGI middleware that rejects the handshake (403) of a missing, foreign or malformed origin."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass the socket on, or close it before it is accepted."""
        sent = [value for name, value in cast("WebSocketScope", scope)["headers"] if name == b"origin"]
        allowed = allowed_origins(settings.PUBLIC_URL, settings.ENV.mode)
        # A browser sends the header once and without a path; anything else is not one of our pages.
        text = sent[0].decode("latin-1") if len(sent) == 1 else ""
        if (
            text
            and origin_of(text) in allowed
            and urlsplit(text).path == ""
            and not text.endswith(("?", "#"))
        ):
            await self._application(scope, receive, send)
            return
        log.info("socket_origin_rejected", origin=text[:100], times_sent=len(sent))
        await deny(send, 403, "foreign_origin", "Only pages of this LoopGuard may open a socket.")
