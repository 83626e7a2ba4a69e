"""API keys: make, recognise, revoke. The secret leaves this module once, when it is made."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from detection.models import ApiKey, KeyScope, Project
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound

PREFIX = "lg_"
CACHE_SECONDS = 0.9
"""How long a recognised key is trusted without a look at the database; revoking holds within a second."""
MAX_CACHED = 1000
LAST_USED_STEP = timedelta(minutes=1)
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a key speaks for."""

    key_id: int
    public_id: str
    project_id: int
    project_slug: str
    scopes: frozenset[str]
    is_demo: bool
    expires_at: datetime | None
    digest_secret: bytes = field(repr=False)

    @property
    def actor(self) -> Actor:
        """The principal as the audit names it."""
        return Actor(f"key:{self.public_id}")


_cache: dict[str, tuple[float, Principal]] = {}
_cache_lock = threading.Lock()


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def create_key(
    project: Project,
    name: str,
    actor: Actor,
    *,
    scopes: list[str] | None = None,
    expires_at: datetime | None = None,
    is_demo: bool = False,
) -> tuple[ApiKey, str]:
    """Make a key.

    Returns
    -------
    tuple
        The row and the token ``lg_<id>_<256-bit secret><checksum>``, which is not stored and cannot be shown again.
    """
    scopes = list(KeyScope.values) if scopes is None else scopes
    if not scopes or set(scopes) - set(KeyScope.values):
        raise Invalid(f"Scopes must be some of {', '.join(KeyScope.values)}.", field="scopes")
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(10))
    body = f"{PREFIX}{public_id}_{secrets.token_hex(32)}"
    token = body + _checksum(body)
    with transaction.atomic():
        key = ApiKey.objects.create(
            project=project,
            name=name[:80] or "unnamed",
            public_id=public_id,
            digest=hashlib.sha256(token.encode()).hexdigest(),
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


def looks_like_key(token: str) -> bool:
    """Tell by prefix, form and checksum whether this can be one of our keys; costs no query."""
    body, check = token[:-8], token[-8:]
    return (
        token.startswith(PREFIX)
        and len(token) == 3 + 10 + 1 + 64 + 8
        and hmac.compare_digest(_checksum(body), check)
    )


def hint(token: str) -> str:
    """The part of a token that may be shown and logged."""
    return token[: len(PREFIX) + 10] if token.startswith(PREFIX) else ""


def authenticate(token: str) -> Principal | None:
    """Recognise a key.

    Parameters
    ----------
    token
        As sent, without ``Bearer``.

    Returns
    -------
    Principal or None
        None when the key is unknown, revoked or expired. At most one query, none within a second of the last one.
    """
    if not looks_like_key(token):
        return None
    digest = hashlib.sha256(token.encode()).hexdigest()
    now = time.monotonic()
    cached = _cache.get(digest)
    if cached and cached[0] > now:
        return _unless_expired(cached[1])
    key = ApiKey.objects.select_related("project").filter(public_id=token[3:13], revoked_at=None).first()
    if key is None or not hmac.compare_digest(key.digest, digest):
        _cache.pop(digest, None)
        return None
    principal = Principal(
        key.pk,
        key.public_id,
        key.project_id,
        key.project.slug,
        frozenset(key.scopes),
        key.is_demo,
        key.expires_at,
        bytes(key.project.digest_secret),
    )
    with _cache_lock:
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        _cache[digest] = (now + CACHE_SECONDS, principal)
    _note_use(key)
    return _unless_expired(principal)


def _unless_expired(principal: Principal) -> Principal | None:
    return None if principal.expires_at and principal.expires_at <= timezone.now() else principal


def _note_use(key: ApiKey) -> None:
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at >= LAST_USED_STEP:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)


@transaction.atomic
def revoke_key(project: Project, public_id: str, actor: Actor) -> ApiKey:
    """Revoke a key; holds on every process within a second. Revoking twice changes nothing."""
    key = ApiKey.objects.select_for_update().filter(project=project, public_id=public_id).first()
    if key is None:
        raise NotFound("There is no such key.")
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        audit.record(actor, "key.revoke", key.public_id, project_id=project.pk, before={"name": key.name})
        _cache.clear()
    return key
