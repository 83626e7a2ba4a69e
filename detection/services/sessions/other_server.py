"""Forgets the transaction ids of another server, after a restore."""

from __future__ import annotations

from django.db import connections, transaction

_IS_AHEAD = """
SELECT EXISTS (SELECT FROM (
    SELECT seen_xid FROM detection_countingcursor UNION ALL SELECT seen_xid FROM detection_indexingcursor
) AS cursors WHERE seen_xid > pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
"""
_FORGET = (
    "UPDATE detection_session s SET changed_xid = 0 FROM detection_project p WHERE s.project_id = p.id",
    "UPDATE detection_countingcursor SET seen_xid = 0",
    "UPDATE detection_indexingcursor SET seen_xid = 0",
)


def forget_its_transactions(alias: str) -> bool:
    """Set the cursors back where they are ahead of this server, as those of a backup of a busier one are.

    Without that, what is written next would look older than what was counted and indexed, and nobody would count it
    before this server has had as many transactions.

    Returns
    -------
    bool
        Whether they were.
    """
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(_IS_AHEAD)
        (is_ahead,) = cursor.fetchone()
        for statement in _FORGET if is_ahead else ():
            cursor.execute(statement)
    return bool(is_ahead)
