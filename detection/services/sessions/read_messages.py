"""What is remembered of the message lists that were read in a session; written only under the session's lock."""

from __future__ import annotations

from detection.models import ReadMessages, Session, SessionKey
from detection.sql.pipeline import Writes

_WRITE = (
    "INSERT INTO detection_readmessages (project_id, session_id, digests) VALUES (%s, %s, %s)"
    " ON CONFLICT (project_id, session_id) DO UPDATE SET digests = excluded.digests"
)


def load(session: Session) -> bytes:
    """Return what is remembered, empty for a session without message lists."""
    return _digests(session=session)


def load_by_name(project_id: int, external_id: str) -> bytes:
    """Return the same for a session that is known by its name and may not exist yet."""
    return _digests(project_id=project_id, session__external_id=external_id)


def add_write(writes: Writes, key: SessionKey, digests: bytes) -> None:
    """Add the write for a locked session."""
    writes.add(_WRITE, [*key, digests])


def _digests(**session: object) -> bytes:
    found = ReadMessages.objects.filter(**session).values_list("digests", flat=True).first()
    return bytes(found) if found is not None else b""
