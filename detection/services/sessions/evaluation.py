"""Evaluates what sessions have received: by task for those named, by the sweeper for those that no task named.

Evaluating twice changes nothing: the cursor moves in the transaction that stores the outcome.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import DatabaseError, connection

from detection import jobs
from detection.services.errors import NotFound
from detection.services.sessions.folding import EventEvaluationError, Folding
from detection.services.sessions.locked_session import locked_session
from detection.sql.advisory_locks import AdvisoryLock, try_lock

log = structlog.get_logger(__name__)

SWEEP_AFTER = timedelta(seconds=2)
"""A task reaches a worker at once; after this time it was lost."""
SWEEP_SESSIONS = 200


def evaluate(session_id: int, *, wait: bool = True) -> int:
    """Fold what a session has received since the last evaluation.

    Parameters
    ----------
    session_id
        The row; a session that is gone or has nothing new costs one query.
    wait
        False: leave a session alone that another transaction holds.

    Returns
    -------
    int
        How many events were folded. What is left beyond one batch is put before a worker again.
    """
    quarantined: dict[int, str] = {}
    while True:
        try:
            with locked_session(session_id, wait=wait) as locked:
                session = locked.session
                before = session.evaluated_seq
                if before < session.last_seq and Folding(locked, quarantined).catch_up():
                    jobs.evaluate_after_commit([session_id])
                return session.evaluated_seq - before
        except EventEvaluationError as error:
            quarantined[error.seq] = str(error)[:300]
        except NotFound:
            return 0


def sweep() -> int:
    """Evaluate the sessions whose task was lost; the projects take turns.

    Returns
    -------
    int
        How many sessions were evaluated; near zero while broker and workers run. Only one sweep runs at a time,
        wherever it is started; a second one returns at once.
    """
    with try_lock(AdvisoryLock.SWEEP) as is_locked:
        if not is_locked:
            return 0
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM (SELECT id, pending_since, row_number() OVER (PARTITION BY project_id ORDER BY pending_since) AS turn"
                " FROM detection_session WHERE evaluated_seq < last_seq AND pending_since < now() - make_interval(secs => %s)) AS waiting"
                " ORDER BY turn, pending_since LIMIT %s",
                [SWEEP_AFTER.total_seconds(), SWEEP_SESSIONS],
            )
            waiting = [row[0] for row in cursor.fetchall()]
        for session_id in waiting:
            try:
                evaluate(session_id, wait=False)
            except DatabaseError:
                log.exception("sweep_failed", session_id=session_id)
        return len(waiting)
