"""Who may come in: a key, its scope, and only then the body."""

from __future__ import annotations

import math
import random
from typing import Final

import structlog
from django.http import HttpRequest
from ninja.security import HttpBearer

from detection.api import prometheus, rate_limits, request_bodies
from detection.api.problems import Problem
from detection.models import Scope
from detection.services import keys
from detection.services.audit import Actor
from detection.services.keys import Principal

log = structlog.get_logger(__name__)
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="LoopGuard"'}


class ApiKey(HttpBearer):
    """Admits a request whose key has a scope.

    Parameters
    ----------
    scope
        What the route needs.
    accepts
        Media types of the body; empty for routes that take none. The body is read only after the key was recognised.
    attempt
        Name under which attempts to use the route are noted for the Connect screen.
    """

    openapi_description = "A project's key, as in `Authorization: Bearer lg_…`."

    def __init__(self, scope: Scope, accepts: tuple[str, ...] = (), attempt: str = "") -> None:
        super().__init__()
        self.scope, self.accepts, self.attempt = scope, accepts, attempt

    def __call__(self, request: HttpRequest) -> Principal:
        """Return who asks.

        Raises
        ------
        Problem
            401 without a key that is known, 429 when it asks too often, 403 without the scope; then whatever is wrong
            with the body.
        """
        request.attempt = self.attempt  # type: ignore[attr-defined]
        kind, _, token = request.META.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
        if kind.lower() != "bearer":
            raise Problem(
                401,
                "missing_key",
                "Send a key of the project: Authorization: Bearer lg_…",
                headers=_CHALLENGE,
            )
        return self.authenticate(request, token.strip())

    def authenticate(self, request: HttpRequest, token: str) -> Principal:
        """Recognise the key; see `__call__`."""
        principal = keys.authenticate(token) if token.isascii() else None
        if principal is None:
            request.key_hint = keys.hint(token) if token.isascii() and keys.looks_like_key(token) else ""  # type: ignore[attr-defined]
            log.info("key_refused", key=request.key_hint, address=request.client_address)  # type: ignore[attr-defined]
            raise Problem(401, "unknown_key", "This key is unknown, revoked or expired.", headers=_CHALLENGE)
        request.auth = principal  # type: ignore[attr-defined]
        self._count(request, principal)
        if self.scope not in principal.scopes:
            log.info("scope_refused", key=principal.public_id, scope=self.scope)
            raise Problem(403, "missing_scope", f"This key lacks the scope {self.scope.value}.")
        if self.accepts:
            self._take_body(request)
        return principal

    def _count(self, request: HttpRequest, principal: Principal) -> None:
        wait = rate_limits.wait_seconds(principal.key_id)
        if not wait:
            return
        # Whichever route it is: whoever looks for the reason looks at the refused attempts.
        request.attempt = self.attempt or "other"  # type: ignore[attr-defined]
        prometheus.RATE_LIMITED.labels(principal.project_slug).inc()
        # Spread out, so that the agents that share a key do not come back at once.
        wait_seconds = math.ceil(wait) + random.randint(0, 2)  # noqa: S311
        raise Problem(
            429,
            "rate_limited",
            f"A key may make {rate_limits.per_second():,g} requests a second; come back in {wait_seconds} s.",
            headers={"Retry-After": str(wait_seconds)},
        )

    def _take_body(self, request: HttpRequest) -> None:
        request.media_type = request_bodies.media_type(request, self.accepts)  # type: ignore[attr-defined]
        request._body = request_bodies.read_body(request)


READ: Final = ApiKey(Scope.READ)
ADMIN: Final = ApiKey(Scope.ADMIN)
ADMIN_WITH_BODY: Final = ApiKey(Scope.ADMIN, (request_bodies.JSON,))


def principal_of(request: HttpRequest) -> Principal:
    """Return who was admitted."""
    principal: Principal = request.auth  # type: ignore[attr-defined]
    return principal


def project_of(request: HttpRequest) -> int:
    """Return the row id of the caller's project."""
    return principal_of(request).project_id


def actor(request: HttpRequest) -> Actor:
    """Return the caller as the audit names it."""
    principal = principal_of(request)
    return Actor(
        f"key:{principal.public_id}",
        address=request.client_address,  # type: ignore[attr-defined]
        request_id=request.request_id,  # type: ignore[attr-defined]
    )
