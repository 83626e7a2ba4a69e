"""Evaluates received events: sessions named by a task, and by the sweeper those without a task.

Evaluating twice changes nothing: the cursor moves in the transaction that stores the outcome.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

import structlog
from django.db import DatabaseError, OperationalError, connection
from django.utils import timezone

from detection import jobs
from detection.models import SessionKey
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


def evaluate(key: SessionKey, *, wait: bool = True) -> int:
    """Fold the events that a session has received since the last evaluation.

    Where a detector looks across the sessions of a family, the events of all of them are folded in the order in which
    they were received, up to the last one of this session.

    Parameters
    ----------
    key
        Of the row; a session that is gone or has nothing new costs one query.
    wait
        False: leave a session alone that another transaction holds.

    Returns
    -------
    int
        Number of events folded. The rest beyond one batch is enqueued again.
    """
    total, current, has_moved = 0, key, True
    failed: set[int] = set()
    while True:
        try:
            done = _evaluate_one(current, failed, wait=wait)
        except DatabaseError as error:
            if current == key or isinstance(error, OperationalError):
                raise
            log.exception("family_not_evaluated", session_id=current.session_id)
            failed.add(current.session_id)  # The rest of the family continues without it.
            current = key
            continue
        total += done.events
        if done.earlier is None and current == key:
            return total
        if total >= folding.BATCH_EVENTS:
            jobs.evaluate_after_commit(key.project_id, [key.session_id])
            return total
        if not done.events and not has_moved:
            return total  # Another transaction holds the one that is next: it, or the sweeper, continues.
        has_moved = done.events > 0
        current = key if done.earlier is None else key._replace(session_id=done.earlier)


class _Evaluated(NamedTuple):
    """What was folded of one session.

    Attributes
    ----------
    earlier
        The session of its family that has to be evaluated next; None if it does not wait for one.
    """

    events: int
    earlier: int | None = None


@retry_conflicts
def _evaluate_one(key: SessionKey, failed: Collection[int], *, wait: bool) -> _Evaluated:
    quarantine, limit, evaluated = Quarantine(), folding.BATCH_EVENTS, 0
    while True:
        before = 0
        try:
            with locked_session(key, wait=wait) as locked:
                session, own = locked.session, Folding(locked, quarantine, failed)
                before = session.evaluated_seq
                is_left = before < session.last_seq and own.catch_up(limit)
                evaluated += session.evaluated_seq - before
                if is_left and not own.earlier and evaluated >= folding.BATCH_EVENTS:
                    jobs.evaluate_after_commit(key.project_id, [key.session_id])
        except EventEvaluationError as error:
            # The events before it are folded again. So that many such events take linear time, the next transaction
            # ends soon after it, and those that succeed grow.
            quarantine.add(error)
            limit = max(FEWEST_EVENTS, error.event.seq - before)
            continue
        except NotFound:
            return _Evaluated(evaluated)
        if own.earlier:
            return _Evaluated(evaluated, own.earlier[0])
        if not is_left or evaluated >= folding.BATCH_EVENTS:
            return _Evaluated(evaluated)
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
        now = timezone.now()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT project_id, id FROM (SELECT project_id, id, pending_since, row_number() OVER"
                " (PARTITION BY project_id ORDER BY pending_since) AS turn"
                " FROM detection_session WHERE evaluated_seq < last_seq"
                # A time far in the future was noted before the clock went back, or by a clock that is wrong.
                " AND (pending_since < %s OR pending_since > %s)) AS waiting"
                " ORDER BY turn, pending_since LIMIT %s",
                [now - SWEEP_AFTER, now + SWEEP_AFTER, SWEEP_SESSIONS],
            )
            waiting = [SessionKey(*row) for row in cursor.fetchall()]
        for key in waiting:
            try:
                evaluate(key, wait=False)
            except Exception:
                # Whatever it is: the same sessions come first in the next sweep, and the others would wait forever.
                log.exception("sweep_failed", session_id=key.session_id)
        return len(waiting)
