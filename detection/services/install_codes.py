"""Codes that one command of Connect carries: each becomes a key once, within ten minutes, with the one scope it needs.

A code is kept as a digest only, with its project, the person who asked for it, and its scope. Whoever asks for another
one of the same integration voids the first.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from detection.models import KeyScope, Membership, Project, Role
from detection.services import audit, brief_records, keys
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, ServiceError

LIFETIME: Final = timedelta(minutes=10)
"""Enough to change to a terminal and paste; a judgement."""
REMEMBERED_SECONDS: Final = 86_400.0
"""How long a used or expired code differs from one that never was, and the page shows what became of it."""
MAX_MACHINE_CHARACTERS: Final = 40
SCOPES: Final = (KeyScope.GUARD.value, KeyScope.INGEST.value)
"""What a code can become: a key that reads or changes nothing."""
_ALPHABET: Final = "23456789abcdefghjkmnpqrstvwxyz"
_CHARACTERS: Final = 24
"""118 bits, in groups that can be read."""


class UnknownCode(ServiceError):
    """No such code, or its person may create no keys any more."""

    code, status = "unknown_code", 404

    def __init__(self) -> None:
        super().__init__("This code is unknown. Copy the whole command from Connect again.", field="code")


class UsedCode(ServiceError):
    """The code has become a key before."""

    code, status = "used_code", 410

    def __init__(self) -> None:
        super().__init__("This code was used. Get a new command from Connect.", field="code")


class ExpiredCode(ServiceError):
    """The code was not used in time."""

    code, status = "expired_code", 410

    def __init__(self) -> None:
        super().__init__(
            "This code has expired: it is valid for 10 minutes. Get a new command from Connect.", field="code"
        )


@dataclass(frozen=True, slots=True)
class _Offer:
    """What is kept of a code."""

    project_id: int
    user_id: int
    integration: str
    title: str
    scope: str
    key_days: int
    expires_at: str


@dataclass(frozen=True, slots=True)
class Installation:
    """What became of the newest code of a person for an integration.

    Attributes
    ----------
    expires_at
        Until when the code can be used.
    key_id, machine, used_at
        The key that it became, where, and when; empty and None until then.
    """

    expires_at: datetime
    key_id: str = ""
    machine: str = ""
    used_at: datetime | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the code can still be used."""
        return self.used_at is None and self.expires_at > timezone.now()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The key that a code became; its token is not stored."""

    token: str
    key_name: str
    project: str
    integration: str
    scope: str


def create_code(
    project: Project, actor: Actor, *, integration: str, title: str, scope: str, key_days: int = 0
) -> tuple[str, Installation]:
    """Create a code, and void the earlier one of the same person and integration.

    Parameters
    ----------
    integration, title
        What it connects: for the command, and for people.
    scope
        The scope of the key, ``guard`` or ``ingest``.
    key_days
        Lifetime of the key in days; 0 for one that does not expire.

    Returns
    -------
    tuple
        The code, which is not stored and cannot be shown again, and until when it is valid.

    Raises
    ------
    Invalid
        Another scope, or the actor is no person.
    """
    if scope not in SCOPES or actor.user_id is None:
        raise Invalid(
            "A code becomes a key of a person that can only guard or only send events.", field="scope"
        )
    raw = "".join(secrets.choice(_ALPHABET) for _ in range(_CHARACTERS))
    code = "-".join(raw[start : start + 6] for start in range(0, _CHARACTERS, 6))
    made = Installation(timezone.now() + LIFETIME)
    offer = _Offer(
        project.pk, actor.user_id, integration, title, scope, key_days, made.expires_at.isoformat()
    )
    place = _place(project.pk, actor.user_id, integration)
    with transaction.atomic():
        known, earlier = brief_records.load(place)
        if known:
            brief_records.delete(earlier["code"])
        digest = _digest(code)
        brief_records.store(digest, asdict(offer), REMEMBERED_SECONDS)
        brief_records.store(place, {"code": digest, "expires_at": offer.expires_at}, REMEMBERED_SECONDS)
        audit.record(
            actor,
            "key.code",
            integration,
            project_id=project.pk,
            after={"scope": scope, "expires_at": offer.expires_at},
        )
    return code, made


def installation_of(project_id: int, user_id: int, integration: str) -> Installation | None:
    """Return what became of a person's newest code for an integration within a day; None if there was none."""
    known, value = brief_records.load(_place(project_id, user_id, integration))
    if not known:
        return None
    used_at = value.get("used_at")
    return Installation(
        datetime.fromisoformat(value["expires_at"]),
        value.get("key_id", ""),
        value.get("machine", ""),
        datetime.fromisoformat(used_at) if used_at else None,
    )


def exchange(code: str, machine: str, *, address: str | None = None, request_id: str = "") -> Exchanged:
    """Turn a code into a key. Of several requests with one code, one gets the key.

    Parameters
    ----------
    machine
        Where the key will be used, for its name.
    address, request_id
        Of the request, for the audit.

    Raises
    ------
    UnknownCode, UsedCode, ExpiredCode
        It is not valid.
    Conflict
        The project is archived; the code stays valid.
    """
    digest = _digest(code.strip().lower())
    known, value = brief_records.load(digest)
    if not known:
        raise UnknownCode
    offer = _Offer(**value)
    membership = (
        Membership.objects.select_related("project", "user")
        .filter(project_id=offer.project_id, user_id=offer.user_id, user__is_active=True)
        .first()
    )
    if membership is None or not membership.allows(Role.ADMIN):
        raise UnknownCode
    with transaction.atomic():
        if not brief_records.claim(brief_records.key_of("used install code", digest), REMEMBERED_SECONDS):
            raise UsedCode
        now = timezone.now()
        if now >= datetime.fromisoformat(offer.expires_at):
            raise ExpiredCode
        if membership.project.archived_at is not None:
            raise Conflict(keys.PROJECT_ARCHIVED, code="project_archived")
        where = "".join(one for one in machine if one.isprintable())[:MAX_MACHINE_CHARACTERS].strip()
        person = Actor(membership.user.get_username(), offer.user_id, address, request_id)
        key, token = keys.create_key(
            membership.project,
            f"{offer.title[:36]} on {where or 'a machine'}",
            person,
            scopes=[offer.scope],
            expires_at=now + timedelta(days=offer.key_days) if offer.key_days else None,
        )
        brief_records.store(
            _place(offer.project_id, offer.user_id, offer.integration),
            {
                "code": digest,
                "expires_at": offer.expires_at,
                "key_id": key.public_id,
                "machine": where,
                "used_at": now.isoformat(),
            },
            REMEMBERED_SECONDS,
        )
    return Exchanged(token, key.name, membership.project.slug, offer.integration, offer.scope)


def _digest(code: str) -> str:
    return brief_records.key_of("install code", code)


def _place(project_id: int, user_id: int, integration: str) -> str:
    return brief_records.key_of("installation", project_id, user_id, integration)
