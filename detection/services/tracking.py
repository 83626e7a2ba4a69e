"""The engine's snapshot of a session: read and written while the session's row is locked, and never without.

It is read by a statement of its own, after the lock was given: joined to the locking query it would come from before the
wait, and a call that waited for another one would undo what that one counted.
"""

from __future__ import annotations

from django.db import connection

from detection.engine import snapshot
from detection.engine.memory import State
from detection.services.roundtrip import Statements

_READ = "SELECT snapshot FROM detection_trackerstate WHERE session_id = %s"
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
    statements = Statements()
    statements.add(_READ, [session_id])
    statements.add(
        "SELECT type, call_id FROM detection_event WHERE session_id = %s AND type IN ('call', 'result')"
        " AND call_id = ANY(%s::text[])",
        [session_id, call_ids],
    )
    stored, known = statements.fetch()
    return (bytes(stored[0][0]) if stored else None), {(kind, call_id) for kind, call_id in known}


def write(session_id: int, state: State) -> None:
    """Store the state of a locked session."""
    statements = Statements()
    add_write(statements, session_id, state)
    statements.send()


def add_write(statements: Statements, session_id: int, state: State) -> None:
    """Put the storing of the state behind other statements."""
    statements.add(_WRITE, [session_id, snapshot.VERSION, snapshot.dump(state)])
