"""API keys: create, authenticate, revoke. Only `create_key` returns the token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from detection.models import ApiKey, KeyScope, Project, SpikeAction
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Invalid, found
from detection.services.redaction.redaction import Redactor

PREFIX = "lg_"
CACHE_SECONDS = 0.9
"""How long a key is authenticated without a query. Revoking it and changing its project take effect within a second."""
PROJECT_ARCHIVED = "The project is archived and takes no events or calls. An admin can restore it."
MAX_CACHED = 1000
LAST_USED_STEP = timedelta(seconds=5)
"""How exactly the last use of a key and of its routes is written: not with each request, and sooner than a person looks
again. A judgement."""
ASKED_WITHIN = timedelta(days=7)
"""How long after a request to the guard or of a hook the owner of a key counts as asking. A judgement: a holiday."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True)
class Principal:
    """The key of a request, with its project and scopes.

    Attributes
    ----------
    spike_action, spike_limit
        Those of the project.
    asks
        Whether the guard or a hook was asked with this key in the last days.
    """

    key_id: int
    public_id: str
    project_id: int
    project_slug: str
    scopes: frozenset[str]
    is_demo: bool
    expires_at: datetime | None
    digest_secret: bytes = field(repr=False)
    redacted_names: frozenset[str] = frozenset()
    redaction_patterns: tuple[str, ...] = ()
    is_archived: bool = False
    spike_action: str = SpikeAction.OBSERVE
    spike_limit: int = 0
    asks: bool = False

    @classmethod
    def of_project(
        cls,
        project: Project,
        public_id: str,
        scopes: Iterable[str],
        *,
        key_id: int = 0,
        is_demo: bool = False,
        expires_at: datetime | None = None,
        asks: bool = False,
    ) -> Principal:
        """Return a principal of a project; 0 as `key_id` stands for one without a key."""
        return cls(
            key_id,
            public_id,
            project.pk,
            project.slug,
            frozenset(scopes),
            is_demo,
            expires_at,
            bytes(project.digest_secret),
            frozenset(project.redacted_names),
            tuple(project.redaction_patterns),
            project.archived_at is not None,
            project.spike_action,
            project.spike_limit,
            asks,
        )

    @property
    def redactor(self) -> Redactor:
        """A new redactor with the project's rules."""
        return Redactor(self.digest_secret, self.redacted_names, self.redaction_patterns)

    @property
    def actor(self) -> Actor:
        """The principal as the audit log names it."""
        return Actor(f"{audit.KEY_PREFIX}{self.public_id}")


class PrincipalCache:
    """Recently authenticated keys of this process, by digest."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, Principal]] = {}
        self._lock = threading.Lock()

    def get(self, digest: str) -> Principal | None:
        """Return the principal of a digest unless its entry is too old."""
        entry = self._entries.get(digest)
        return entry[1] if entry and entry[0] > time.monotonic() else None

    def put(self, digest: str, principal: Principal) -> None:
        """Remember a principal for `CACHE_SECONDS`."""
        with self._lock:
            if len(self._entries) >= MAX_CACHED:
                self._entries.clear()
            self._entries[digest] = (time.monotonic() + CACHE_SECONDS, principal)

    def discard(self, digest: str) -> None:
        """Forget a digest."""
        self._entries.pop(digest, None)

    def clear(self) -> None:
        """Forget all keys."""
        self._entries.clear()


principal_cache = PrincipalCache()


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def new_token(prefix: str) -> tuple[str, str]:
    """Return the readable part of a new token, and the token: prefix, readable part, 256-bit secret, checksum."""
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(10))
    return public_id, token_with(prefix, public_id, secrets.token_hex(32))


def token_with(prefix: str, public_id: str, secret: str) -> str:
    """Return the token with a readable part and a secret, 64 hexadecimal digits."""
    body = f"{prefix}{public_id}_{secret}"
    return body + _checksum(body)


def digest_of(token: str) -> str:
    """Return the digest of a token, which is stored instead of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def create_key(
    project: Project,
    name: str,
    actor: Actor,
    *,
    scopes: list[str] | None = None,
    expires_at: datetime | None = None,
    is_demo: bool = False,
) -> tuple[ApiKey, str]:
    """Create a key.

    Returns
    -------
    tuple
        The row and the token ``lg_<id>_<256-bit secret><checksum>``, which is not stored and cannot be shown again.
    """
    scopes = list(KeyScope.values) if scopes is None else scopes
    if not scopes or set(scopes) - set(KeyScope.values):
        raise Invalid(f"`scopes` must contain at least one of {', '.join(KeyScope.values)}.", field="scopes")
    public_id, token = new_token(PREFIX)
    with transaction.atomic():
        key = ApiKey.objects.create(
            project=project,
            name=name[:80] or "unnamed",
            public_id=public_id,
            digest=digest_of(token),
            scopes=scopes,
            is_demo=is_demo,
            expires_at=expires_at,
            created_by_id=actor.user_id,
        )
        audit.record(
            actor,
            "key.create",
            key.public_id,
            project_id=project.pk,
            after={"name": key.name, "scopes": scopes},
        )
    return key, token


def looks_like_key(token: str, prefix: str = PREFIX) -> bool:
    """Return whether prefix, length and checksum are those of a key, or of another kind of token; costs no query."""
    body, check = token[:-8], token[-8:]
    return (
        token.startswith(prefix)
        and len(token) == len(prefix) + 10 + 1 + 64 + 8
        and hmac.compare_digest(_checksum(body), check)
    )


def hint(token: str) -> str:
    """Return the part of a token that may be shown and logged."""
    return token[: len(PREFIX) + 10] if token.startswith(PREFIX) else ""


def authenticate(token: str) -> Principal | None:
    """Authenticate a key.

    Parameters
    ----------
    token
        As sent, without ``Bearer``.

    Returns
    -------
    Principal or None
        None if the key is unknown, revoked or expired. Costs at most one query, and none within a second of the last
        one.
    """
    if not looks_like_key(token):
        return None
    digest = digest_of(token)
    cached = principal_cache.get(digest)
    if cached is not None:
        return _unless_expired(cached)
    key = ApiKey.objects.select_related("project").filter(public_id=token[3:13], revoked_at=None).first()
    if key is None or not hmac.compare_digest(key.digest, digest):
        principal_cache.discard(digest)
        return None
    principal = Principal.of_project(
        key.project,
        key.public_id,
        key.scopes,
        key_id=key.pk,
        is_demo=key.is_demo,
        expires_at=key.expires_at,
        asks=_asks(key),
    )
    principal_cache.put(digest, principal)
    _update_last_used(key)
    return _unless_expired(principal)


def _unless_expired(principal: Principal) -> Principal | None:
    return None if principal.expires_at and principal.expires_at <= timezone.now() else principal


def _asks(key: ApiKey) -> bool:
    since = (timezone.now() - ASKED_WITHIN).isoformat()
    return any(
        at > since for route, at in key.routes.items() if route == "guard" or route.startswith("hooks/")
    )


def _update_last_used(key: ApiKey) -> None:
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at >= LAST_USED_STEP:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)


@transaction.atomic
def revoke_key(project: Project, public_id: str, actor: Actor) -> ApiKey:
    """Revoke a key. Takes effect in every process within a second; revoking twice changes nothing."""
    key = found(ApiKey.objects.select_for_update().filter(project=project, public_id=public_id).first())
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        audit.record(actor, "key.revoke", key.public_id, project_id=project.pk, before={"name": key.name})
        principal_cache.clear()
    return key
