"""The browsers in which a person is signed in, and how sign-ins end. Open pages and sockets end within a second."""

from __future__ import annotations

import secrets
import threading
import time

import structlog
from django.contrib.sessions.models import Session as BrowserSession
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from detection.models import SignIn
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import found

log = structlog.get_logger(__name__)
SEEN_STEP_SECONDS = 60.0
MAX_REMEMBERED = 5_000
MAX_AGENT_CHARACTERS = 300
BATCH_EXPIRED = 5_000
# Only for a session that exists: signing out elsewhere may have ended it during the request.
_SEEN = """
    INSERT INTO detection_signin AS known
        (session_id, public_id, user_id, agent, address, first_seen_at, last_seen_at)
    SELECT session_key, %(public_id)s, %(user_id)s, %(agent)s, %(address)s, now(), now()
    FROM django_session WHERE session_key = %(session_key)s
    ON CONFLICT (session_id) DO UPDATE SET
        last_seen_at = excluded.last_seen_at, address = excluded.address, agent = excluded.agent,
        user_id = excluded.user_id
"""


class SeenTimes:
    """When this process last wrote that a sign-in was seen; bounded."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._lock = threading.Lock()

    def is_due(self, session_key: str) -> bool:
        """Return whether to write it now, and remember that."""
        now = time.monotonic()
        with self._lock:
            if now - self._times.get(session_key, -SEEN_STEP_SECONDS) < SEEN_STEP_SECONDS:
                return False
            if len(self._times) >= MAX_REMEMBERED:
                self._times.clear()
            self._times[session_key] = now
        return True

    def forget(self, session_key: str) -> None:
        """Forget a sign-in that could not be written, so the next request tries again."""
        with self._lock:
            self._times.pop(session_key, None)

    def clear(self) -> None:
        """Forget all."""
        self._times.clear()


seen_times = SeenTimes()


def note_seen(session_key: str, user_id: int, agent: str, address: str | None) -> None:
    """Write that a person was seen, at most once a minute for each process and sign-in; never fails."""
    if not seen_times.is_due(session_key):
        return
    values: dict[str, str | int | None] = {
        "session_key": session_key,
        "public_id": f"sgn_{secrets.token_hex(6)}",
        "user_id": user_id,
        "agent": agent[:MAX_AGENT_CHARACTERS].replace("\x00", ""),
        "address": address,
    }
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_SEEN, values)
    except DatabaseError as error:  # a full disk, for example, on which pages can still be read
        seen_times.forget(session_key)
        log.info("sign_in_not_noted", error=str(error)[:200])


@transaction.atomic
def end_sign_in(user_id: int, public_id: str, actor: Actor) -> None:
    """Sign a person out in one browser; `NotFound` if the person is not signed in there."""
    rows = SignIn.objects.select_for_update().filter(user_id=user_id, public_id=public_id)
    row = found(rows.first(), "This sign-in has already ended.")
    audit.record(actor, "account.sign_out", row.user.get_username(), project_id=None, before=_described(row))
    BrowserSession.objects.filter(pk=row.session_id).delete()


@transaction.atomic
def end_sign_ins(user_id: int, actor: Actor, *, except_session: str = "") -> int:
    """Sign a person out everywhere except in the session of the request; return how many sign-ins ended."""
    rows = SignIn.objects.select_for_update(of=("self",)).select_related("user").filter(user_id=user_id)
    ended = [*rows.exclude(session_id=except_session)]
    if ended:
        audit.record(
            actor,
            "account.sign_out",
            ended[0].user.get_username(),
            project_id=None,
            before={"sign_ins": len(ended)},
        )
        BrowserSession.objects.filter(pk__in=[row.session_id for row in ended]).delete()
    return len(ended)


def _described(row: SignIn) -> dict[str, str]:
    return {"agent": row.agent, "first_seen_at": row.first_seen_at.isoformat(), "address": row.address or ""}


def forget_expired() -> None:
    """Delete the sessions of browsers that have expired, with their sign-ins."""
    expired = BrowserSession.objects.filter(expire_date__lt=timezone.now()).values("pk")[:BATCH_EXPIRED]
    while BrowserSession.objects.filter(pk__in=expired).delete()[0] >= BATCH_EXPIRED:
        pass
