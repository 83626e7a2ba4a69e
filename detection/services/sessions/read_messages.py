"""What is remembered of the message lists that were read in a session; written only under the session's lock."""

from __future__ import annotations

from detection.models import ReadMessages, Session
from detection.sql.pipeline import Writes

_WRITE = (
    "INSERT INTO detection_readmessages (session_id, digests) VALUES (%s, %s)"
    " ON CONFLICT (session_id) DO UPDATE SET digests = excluded.digests"
)


def load(session: Session) -> bytes:
    """Return what is remembered, empty for a session without message lists."""
    return _digests(session__pk=session.pk)


def load_by_name(project_id: int, external_id: str) -> bytes:
    """Return the same for a session that is known by its name and may not exist yet."""
    return _digests(session__project_id=project_id, session__external_id=external_id)


def add_write(writes: Writes, session_id: int, digests: bytes) -> None:
    """Add the write for a locked session."""
    writes.add(_WRITE, [session_id, digests])


def _digests(**session: object) -> bytes:
    found = ReadMessages.objects.filter(**session).values_list("digests", flat=True).first()
    return bytes(found) if found is not None else b""
