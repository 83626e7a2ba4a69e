"""Evaluates received events: sessions named by a task, and by the sweeper those without a task.

Evaluating twice changes nothing: the cursor moves in the transaction that stores the outcome.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

import structlog
from django.db import DatabaseError, OperationalError, connection

from detection import jobs
from detection.services.errors import NotFound
from detection.services.sessions import folding
from detection.services.sessions.folding import EventEvaluationError, Folding, Quarantine
from detection.services.sessions.locked_session import locked_session
from detection.sql.advisory_locks import AdvisoryLock, try_lock
from detection.sql.retries import retry_conflicts

log = structlog.get_logger(__name__)

SWEEP_AFTER = timedelta(seconds=2)
"""Time after which a task that has not reached a worker counts as lost."""
SWEEP_SESSIONS = 200
FEWEST_EVENTS = 16
"""Events of the transaction after one that failed. Each of them costs a transaction more if it fails as well."""


def evaluate(session_id: int, *, wait: bool = True) -> int:
    """Fold the events that a session has received since the last evaluation.

    Where a detector looks across the sessions of a family, the events of all of them are folded in the order in which
    they were received, up to the last one of this session.

    Parameters
    ----------
    session_id
        The row; a session that is gone or has nothing new costs one query.
    wait
        False: leave a session alone that another transaction holds.

    Returns
    -------
    int
        Number of events folded. The rest beyond one batch is enqueued again.
    """
    total, current, has_moved = 0, session_id, True
    failed: set[int] = set()
    while True:
        try:
            done = _evaluate_one(current, failed, wait=wait)
        except DatabaseError as error:
            if current == session_id or isinstance(error, OperationalError):
                raise
            log.exception("family_not_evaluated", session_id=current)
            failed.add(current)  # The rest of the family continues without it.
            current = session_id
            continue
        total += done.events
        if done.earlier is None and current == session_id:
            return total
        if total >= folding.BATCH_EVENTS:
            jobs.evaluate_after_commit(done.project_id, [session_id])
            return total
        if not done.events and not has_moved:
            return total  # Another transaction holds the one that is next: it, or the sweeper, continues.
        has_moved = done.events > 0
        current = session_id if done.earlier is None else done.earlier


class _Evaluated(NamedTuple):
    """What was folded of one session.

    Attributes
    ----------
    earlier
        The session of its family that has to be evaluated next; None if it does not wait for one.
    """

    events: int
    earlier: int | None = None
    project_id: int = 0


@retry_conflicts
def _evaluate_one(session_id: int, failed: Collection[int], *, wait: bool) -> _Evaluated:
    quarantine, limit, evaluated, project_id = Quarantine(), folding.BATCH_EVENTS, 0, 0
    while True:
        before = 0
        try:
            with locked_session(session_id, wait=wait) as locked:
                session, own = locked.session, Folding(locked, quarantine, failed)
                before, project_id = session.evaluated_seq, session.project_id
                is_left = before < session.last_seq and own.catch_up(limit)
                evaluated += session.evaluated_seq - before
                if is_left and not own.earlier and evaluated >= folding.BATCH_EVENTS:
                    jobs.evaluate_after_commit(project_id, [session_id])
        except EventEvaluationError as error:
            # The events before it are folded again. So that many such events take linear time, the next transaction
            # ends soon after it, and those that succeed grow.
            quarantine.add(error)
            limit = max(FEWEST_EVENTS, error.event.seq - before)
            continue
        except NotFound:
            return _Evaluated(evaluated, None, project_id)
        if own.earlier:
            return _Evaluated(evaluated, own.earlier[0], project_id)
        if not is_left or evaluated >= folding.BATCH_EVENTS:
            return _Evaluated(evaluated, None, project_id)
        limit = min(2 * limit, folding.BATCH_EVENTS)


def sweep(lock: AdvisoryLock = AdvisoryLock.SWEEP) -> int:
    """Evaluate the sessions whose task was lost, taking projects in turn.

    Parameters
    ----------
    lock
        Only one sweep with this lock runs at a time, wherever it is started; a second one returns at once. Outside
        the workers it is another lock, as a worker may hang while it holds its own.

    Returns
    -------
    int
        How many sessions were evaluated; near zero while broker and workers run.
    """
    with try_lock(lock) as is_locked:
        if not is_locked:
            return 0
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM (SELECT id, pending_since, row_number() OVER"
                " (PARTITION BY project_id ORDER BY pending_since) AS turn"
                " FROM detection_session WHERE evaluated_seq < last_seq"
                # A time in the future was noted before the clock went back.
                " AND (pending_since < now() - make_interval(secs => %s) OR pending_since > now())) AS waiting"
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
