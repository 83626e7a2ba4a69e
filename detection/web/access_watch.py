"""Ends open sockets, long polls and requests of the gateway once the access they were opened with has ended.

A request of the gateway also ends when a containment stops its agent.

The process queries the database twice a second, once for each kind of right however many connections are open. So it
does not matter which process, command or statement ended the right, or whether the broker works: signing out, revoking
a sign-in, a key or a token, a new password, a deactivated account, a removed member, a changed role and an archived
project all take effect within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog
from channels.db import database_sync_to_async
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session as SignInSession
from django.db import DatabaseError, InterfaceError
from django.db.models import Q
from django.utils import timezone

from detection.models import ApiKey, GatewayToken, Membership
from detection.services.gateway.conversations import OpenRequest, contained_requests

log = structlog.get_logger(__name__)
CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class MemberAccess:
    """A signed-in member with an open connection, as of when it was opened.

    Attributes
    ----------
    password
        The stored digest of the password: a new one ends the sign-ins of the person.
    """

    session_key: str
    user_id: int
    password: str
    project_id: int
    role: str
    has_second_factor: bool


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """An API key that waits for something."""

    key_id: int


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """A key or token with a gateway request in progress, which also ends when the project is archived.

    Attributes
    ----------
    key_id
        As `Principal.key_id`: negative for a token.
    """

    key_id: int


Access = MemberAccess | KeyAccess | AgentAccess | OpenRequest
SIGNED_OUT, NOT_A_MEMBER, ROLE_CHANGED, KEY_REVOKED, PROJECT_ARCHIVED = (
    "signed_out",
    "not_a_member",
    "role_changed",
    "key_revoked",
    "project_archived",
)


def ended(accesses: Iterable[Access], now: datetime) -> dict[Access, str]:
    """Return the accesses that have ended, with the reason: of a contained request, the message for its agent.

    At most six queries while no containment is in force.
    """
    members = {one for one in accesses if isinstance(one, MemberAccess)}
    keyed = {one for one in accesses if isinstance(one, KeyAccess | AgentAccess)}
    requests = {one for one in accesses if isinstance(one, OpenRequest)}
    found: dict[Access, str] = {}
    found |= _ended_members(members, now) if members else {}
    found |= _ended_keys(keyed, now) if keyed else {}
    for request, text in contained_requests(requests).items() if requests else ():
        found[request] = text
    return found


def _ended_keys(accesses: set[KeyAccess | AgentAccess], now: datetime) -> dict[Access, str]:
    ids = {one.key_id for one in accesses}
    columns = ("pk", "project__archived_at")
    valid = ApiKey.objects.filter(pk__in={pk for pk in ids if pk > 0}, revoked_at=None)
    archived = dict(valid.filter(Q(expires_at=None) | Q(expires_at__gt=now)).values_list(*columns))
    if token_ids := {-pk for pk in ids if pk < 0}:
        tokens = GatewayToken.objects.filter(pk__in=token_ids, revoked_at=None)
        archived |= {-pk: archived_at for pk, archived_at in tokens.values_list(*columns)}
    found: dict[Access, str] = {}
    for one in accesses:
        if one.key_id not in archived:
            found[one] = KEY_REVOKED
        elif isinstance(one, AgentAccess) and archived[one.key_id]:
            found[one] = PROJECT_ARCHIVED
    return found


def _ended_members(members: set[MemberAccess], now: datetime) -> dict[Access, str]:
    sessions = SignInSession.objects.filter(
        session_key__in={one.session_key for one in members}, expire_date__gt=now
    )
    signed_in = set(sessions.values_list("session_key", flat=True))
    user_ids = {one.user_id for one in members}
    users = get_user_model().objects.filter(pk__in=user_ids, is_active=True)
    passwords = dict(users.values_list("pk", "password"))
    memberships = Membership.objects.filter(
        user_id__in=user_ids, project_id__in={one.project_id for one in members}
    )
    columns = ("user_id", "project_id", "role", "project__requires_second_factor")
    roles = {(user, project): rest for user, project, *rest in memberships.values_list(*columns)}
    found: dict[Access, str] = {}
    for one in members:
        role, needs_factor = roles.get((one.user_id, one.project_id), (None, False))
        if one.session_key not in signed_in or passwords.get(one.user_id) != one.password:
            found[one] = SIGNED_OUT
        elif role is None or (needs_factor and not one.has_second_factor):
            found[one] = NOT_A_MEMBER
        elif role != one.role:
            found[one] = ROLE_CHANGED
    return found


class AccessWatch:
    """The open connections of this process, and the task that checks them while there are any."""

    def __init__(self) -> None:
        self._open: dict[Access, list[Callable[[str], None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def watching(self, access: Access, end: Callable[[str], None]) -> Iterator[None]:
        """During the block, call `end` with the reason once the access has ended."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the connections of an earlier loop ended with it
            self._open, self._task, self._loop = {}, None, loop
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check())
        callbacks = self._open.setdefault(access, [])
        callbacks.append(end)
        try:
            yield
        finally:
            callbacks.remove(end)
            if not callbacks and self._open.get(access) is callbacks:
                del self._open[access]
            if not self._open and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                found = await database_sync_to_async(ended)([*self._open], timezone.now())
            except (DatabaseError, InterfaceError) as error:  # the watch outlives whatever the database does
                log.info("access_check_failed", error=str(error)[:200])
                continue
            for access, reason in found.items():
                for end in [*self._open.get(access, ())]:
                    end(reason)


access_watch = AccessWatch()
