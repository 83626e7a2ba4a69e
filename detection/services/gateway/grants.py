"""Grants of gateway requests: a key or token with its backend.

`GrantCache` keeps grants while the database is unavailable.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from detection.models import GatewayBackend, GatewayToken, KeyScope
from detection.services import keys
from detection.services.gateway.backends import TOKEN_PREFIX
from detection.services.keys import Principal

FRESH_SECONDS: Final = 0.9
"""How long a grant is used without a query. Revoking takes effect within a second."""
STALE_SECONDS: Final = 900.0
"""How long a grant is used while the database is unavailable."""
MAX_CACHED: Final = 2_000


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend as the gateway uses it; see `detection.models.GatewayBackend`."""

    project_id: int
    public_id: str
    name: str
    kind: str
    base_url: str
    credential: str
    headers: Mapping[str, str] = field(repr=False)
    fails_closed: bool = False
    requests_usage: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """An admitted request."""

    principal: Principal
    backend: Backend


class GrantDenied(Exception):
    """The request is not admitted.

    Attributes
    ----------
    code
        ``unknown_key``, ``missing_scope``, ``project_archived`` or ``unknown_backend``.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def grant_by_key(token: str, backend_name: str) -> Grant:
    """Return the grant of a key; at most two queries. Raises `GrantDenied`."""
    principal = keys.authenticate(token) if token.isascii() else None
    if principal is None:
        raise GrantDenied("unknown_key")
    if KeyScope.GUARD not in principal.scopes:
        raise GrantDenied("missing_scope")
    if principal.is_archived:
        raise GrantDenied("project_archived")
    row = GatewayBackend.objects.filter(
        project_id=principal.project_id, name=backend_name, is_enabled=True
    ).first()
    if row is None:
        raise GrantDenied("unknown_backend")
    return Grant(principal, _backend(row))


def grant_by_path_token(token: str, backend_name: str) -> Grant:
    """Return the grant of a token in a path; one query. Raises `GrantDenied`."""
    if not looks_like_token(token):
        raise GrantDenied("unknown_key")
    rows = GatewayToken.objects.select_related("backend", "project")
    row = rows.filter(public_id=token[len(TOKEN_PREFIX) :][:10], revoked_at=None).first()
    if row is None or not hmac.compare_digest(row.digest, keys.digest_of(token)):
        raise GrantDenied("unknown_key")
    if row.backend.name != backend_name or not row.backend.is_enabled:
        raise GrantDenied("unknown_backend")
    # The ids of keys are positive.
    principal = Principal.of_project(row.project, row.public_id, (KeyScope.GUARD.value,), key_id=-row.pk)
    if principal.is_archived:
        raise GrantDenied("project_archived")
    return Grant(principal, _backend(row.backend))


def looks_like_token(token: str) -> bool:
    """Return whether prefix, length and checksum are those of a token; costs no query."""
    return token.isascii() and keys.looks_like_key(token, TOKEN_PREFIX)


def _backend(row: GatewayBackend) -> Backend:
    return Backend(
        row.project_id,
        row.public_id,
        row.name,
        row.kind,
        row.base_url,
        row.credential,
        dict(row.headers),
        row.fails_closed,
        row.requests_usage,
    )


class GrantCache:
    """Grants of this process, by digest of the key and name of the backend. Belongs to one thread."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], tuple[float, Grant]] = {}

    def fresh(self, key: tuple[str, str]) -> Grant | None:
        """Return a grant that was read within the last second."""
        return self._younger(key, FRESH_SECONDS)

    def stale(self, key: tuple[str, str]) -> Grant | None:
        """Return a grant that was read within the last 15 minutes, for use while the database is unavailable."""
        return self._younger(key, STALE_SECONDS)

    def _younger(self, key: tuple[str, str], seconds: float) -> Grant | None:
        found = self._entries.get(key)
        return found[1] if found is not None and time.monotonic() - found[0] < seconds else None

    def put(self, key: tuple[str, str], grant: Grant) -> None:
        """Remember a grant; the oldest ones are forgotten above `MAX_CACHED`."""
        self._entries.pop(key, None)
        if len(self._entries) >= MAX_CACHED:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (time.monotonic(), grant)

    def discard(self, key: tuple[str, str]) -> None:
        """Forget a grant."""
        self._entries.pop(key, None)
