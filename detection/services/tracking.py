"""The engine's snapshot of a session: read and written while the session's row is locked, and never without.

It is read by a statement of its own, after the lock was given: joined to the locking query it would come from before the
wait, and a call that waited for another one would undo what that one counted.
"""

from __future__ import annotations

from django.db import connection

from detection.engine import fold, snapshot


def read(session_id: int) -> fold.State | None:
    """Load the state of a locked session; None when it has none yet.

    Raises
    ------
    SnapshotVersionError
        When it was written by another version and is to be rebuilt.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT snapshot FROM detection_trackerstate WHERE session_id = %s", [session_id])
        row = cursor.fetchone()
    return snapshot.load(bytes(row[0])) if row else None


def write(session_id: int, state: fold.State) -> None:
    """Store the state of a locked session."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO detection_trackerstate (session_id, version, snapshot) VALUES (%s, %s, %s)"
            " ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot, updated_at = now()",
            [session_id, snapshot.VERSION, snapshot.dump(state)],
        )
