"""Authentication by API key: the key, its rate limit and scope, and only then the body."""

from __future__ import annotations

import math
import random
from typing import Final

import structlog
from django.http import HttpRequest
from ninja.security import HttpBearer

from detection.api import prometheus, request_bodies
from detection.api.problems import Problem
from detection.api.rate_limits import rate_limiter
from detection.api.request_bodies import LIMITS, BodyLimits
from detection.api.requests import ApiRequest, as_api_request
from detection.engine.durations import relative
from detection.models import KeyScope
from detection.services import keys
from detection.services.keys import Principal

log = structlog.get_logger(__name__)
_WRITES_OF_AGENTS: Final = frozenset((KeyScope.INGEST, KeyScope.GUARD))
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="LoopGuard"'}


class ApiKeyAuth(HttpBearer):
    """Admits requests whose key has the required scope.

    Parameters
    ----------
    scope
        The scope that the route requires.
    accepts
        Media types of the body; empty for routes without one. The body is read only after the key is accepted.
    cuts
        Cut long strings of the body as they arrive; see `request_bodies.read_body`.
    attempt
        Name of the route on the Connect screen and in metrics; empty for routes that are not counted there.
    limits
        Limits of the body.
    """

    openapi_description = "A project's key, as in `Authorization: Bearer lg_…`."

    def __init__(
        self,
        scope: KeyScope,
        accepts: tuple[str, ...] = (),
        attempt: str = "",
        *,
        cuts: bool = False,
        limits: BodyLimits = LIMITS,
    ) -> None:
        super().__init__()
        self.scope, self.accepts, self.attempt, self.cuts, self.limits = scope, accepts, attempt, cuts, limits

    def __call__(self, request: HttpRequest) -> Principal:
        """Return the caller.

        Raises
        ------
        Problem
            401 without a known key, 429 above the key's rate limit, 403 without the scope or for an archived project,
            then any error in the body.
        """
        as_api_request(request).attempt = self.attempt
        # Not every exporter decodes the space in OTEL_EXPORTER_OTLP_HEADERS.
        given = request.META.get("HTTP_AUTHORIZATION", "").strip().replace("%20", " ", 1)
        kind, _, token = given.partition(" ")
        if kind.lower() != "bearer":
            raise Problem(
                401,
                "missing_key",
                "Send a key of the project in the header `Authorization: Bearer lg_…`.",
                headers=_CHALLENGE,
            )
        return self.authenticate(request, token.strip())

    def authenticate(self, request: HttpRequest, token: str) -> Principal:
        """Return the caller whose key this is; see `__call__`."""
        api_request = as_api_request(request)
        principal = keys.authenticate(token) if token.isascii() else None
        if principal is None:
            api_request.key_hint = keys.hint(token) if token.isascii() and keys.looks_like_key(token) else ""
            log.warning("key_rejected", key=api_request.key_hint, address=api_request.client_address)
            raise Problem(401, "unknown_key", "The key is unknown, revoked or expired.", headers=_CHALLENGE)
        api_request.principal = request.META["loopguard.principal"] = principal
        self._check_rate(api_request)
        if self.scope not in principal.scopes:
            log.warning("scope_missing", key=principal.public_id, scope=self.scope)
            raise Problem(403, "missing_scope", f"The key needs the `{self.scope.value}` scope.")
        if principal.is_archived and self.scope in _WRITES_OF_AGENTS and request.method != "GET":
            raise Problem(403, "project_archived", keys.PROJECT_ARCHIVED)
        if self.accepts:
            api_request.media_type = request_bodies.media_type(request, self.accepts)
            request._body = request_bodies.read_body(request, cuts=self.cuts, limits=self.limits)
        return principal

    def _check_rate(self, request: ApiRequest) -> None:
        wait = rate_limiter.wait_seconds(request.principal.key_id)
        if not wait:
            return
        # Shown on the Connect screen for every route: that is where people look for the cause.
        request.attempt = self.attempt or "other"
        prometheus.RATE_LIMITED.labels(request.principal.project_slug).inc()
        # Spread out, because agents that share a key would otherwise retry at the same moment.
        wait_seconds = math.ceil(wait) + random.randint(0, 2)  # noqa: S311
        raise Problem(
            429,
            "rate_limited",
            f"The limit is {rate_limiter.per_second:,g} requests per second for each key. "
            f"Retry {relative(-wait_seconds)}.",
            headers={"Retry-After": str(wait_seconds)},
        )


READ: Final = ApiKeyAuth(KeyScope.READ)
ADMIN: Final = ApiKeyAuth(KeyScope.ADMIN)
ADMIN_WITH_BODY: Final = ApiKeyAuth(KeyScope.ADMIN, (request_bodies.JSON,))
