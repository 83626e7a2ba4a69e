"""The engine's snapshot of a session: read and written while the session's row is locked, and never without.

It is read by a statement of its own, after the lock was given: joined to the locking query it would come from before the
wait, and a call that waited for another one would undo what that one counted.
"""

from __future__ import annotations

from django.db import connection

from detection.engine import snapshot
from detection.engine.memory import State
from detection.sql.pipeline import Writes, fetch

_READ = "SELECT snapshot FROM detection_trackerstate WHERE session_id = %s"
_READ_WITH_KNOWN = (
    f"SELECT ({_READ}), ARRAY(SELECT type || ' ' || call_id FROM detection_event"  # noqa: S608 - a text of our own
    " WHERE session_id = %s AND type IN ('call', 'result') AND call_id = ANY(%s::text[]))"
)
_WRITE = (
    "INSERT INTO detection_trackerstate (session_id, version, snapshot) VALUES (%s, %s, %s)"
    " ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot, updated_at = now()"
)


def read(session_id: int) -> State | None:
    """Load the state of a locked session; None when it has none yet.

    Raises
    ------
    SnapshotVersionError
        When it was written by another version and is to be rebuilt.
    """
    with connection.cursor() as cursor:
        cursor.execute(_READ, [session_id])
        row = cursor.fetchone()
    return snapshot.load(bytes(row[0])) if row else None


def read_with_known(session_id: int, call_ids: list[str]) -> tuple[bytes | None, set[tuple[str, str]]]:
    """Read the state of a locked session, still as bytes, and which (type, call id) it has already, in one round trip."""
    [(stored, known)] = fetch(_READ_WITH_KNOWN, [session_id, session_id, call_ids])
    places = (place.partition(" ") for place in known)
    return (None if stored is None else bytes(stored)), {(kind, call_id) for kind, _, call_id in places}


def write(session_id: int, state: State) -> None:
    """Store the state of a locked session."""
    writes = Writes()
    add_write(writes, session_id, state)
    writes.send()


def add_write(writes: Writes, session_id: int, state: State) -> None:
    """Put the storing of the state beside other writes."""
    writes.add(_WRITE, [session_id, snapshot.VERSION, snapshot.dump(state)])
