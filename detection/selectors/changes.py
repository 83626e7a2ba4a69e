"""What has changed since: the cursor of the live pages, of the counters and of the index for searching.

A session's row has the number of the transaction that wrote it last, and a cursor is the oldest transaction that was
running when it was read: docs/decisions/0030-cursor-of-the-coordinator.md. Where rows are distributed over nodes, both
are numbers of the coordinator, whichever node a project is on.
"""

from __future__ import annotations

from typing import Final, cast

from django.db import connection

from detection.sql.postgresql.base import DeadlineConnection

_SNAPSHOT: Final = "SELECT pg_current_snapshot()::text"
# A transaction on several nodes ends on the coordinator before it does on them. It keeps the lock of its own number
# until then; that number has no epoch. Read after the snapshot: what has ended in between can be seen. What has begun
# in between is not before it, and less than half of all numbers away.
_ENDING: Final = """
SELECT min(%(next)s - age) FROM (
    SELECT (%(next)s - transactionid::text::bigint) & 4294967295 AS age FROM pg_locks
    WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
) AS held WHERE age < 2147483648
"""
_TOUCHED: Final = """
SELECT s.project_id FROM detection_project p JOIN detection_session s ON s.project_id = p.id
WHERE s.changed_xid >= %s GROUP BY s.project_id ORDER BY min(s.changed_xid), s.project_id
"""


def snapshot() -> str:
    """Return the current snapshot. While it is the same, readers outside a transaction see the same rows.

    Until the first colon it is the cursor: every later commit has this number or a higher one.
    """
    with connection.cursor() as cursor:
        cursor.execute(_SNAPSHOT)
        found = str(cursor.fetchone()[0])
        if not cast("DeadlineConnection", connection.connection).has_nodes:
            return found
        oldest, following, *running = found.split(":")
        cursor.execute(_ENDING, {"next": int(following)})
        (ending,) = cursor.fetchone()
    return ":".join((str(min(int(oldest), ending or int(oldest))), following, *running))


def horizon() -> int:
    """Return the cursor of this moment."""
    return int(snapshot().partition(":")[0])


def touched_projects(cursor: int) -> list[int]:
    """Return the projects with sessions that were written since the cursor, the one that waits longest first."""
    with connection.cursor() as db:
        db.execute(_TOUCHED, [cursor])
        return [project_id for (project_id,) in db.fetchall()]
