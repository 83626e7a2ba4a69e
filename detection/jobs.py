"""Names of the Celery tasks, and the only code that enqueues them: after commit, in the background."""

from __future__ import annotations

from celery import current_app
from django.db import transaction

from detection.background_publisher import BackgroundPublisher

EVALUATE, SWEEP, HOUSEKEEPING = "detection.evaluate", "detection.sweep", "detection.housekeeping"
JUDGE, CLOSE_APPROVALS = "detection.judge", "detection.close_approvals"
SESSIONS_PER_TASK = 20
"""Large enough that sending is cheap compared with the work, small enough that several workers share it."""
publisher = BackgroundPublisher("jobs", pause_seconds=0.005)


def _send(name: str, *arguments: object) -> None:
    # One connection attempt and no retry: the sweeper covers what could not be sent.
    current_app.send_task(name, args=arguments, retry=False, ignore_result=True)


def evaluate_after_commit(session_ids: list[int]) -> None:
    """Enqueue the evaluation of sessions once the current transaction is committed."""
    transaction.on_commit(lambda: publisher.enqueue(EVALUATE, _send_evaluate, *session_ids), robust=True)


def _send_evaluate(session_ids: list[int]) -> None:
    for first in range(0, len(session_ids), SESSIONS_PER_TASK):
        _send(EVALUATE, session_ids[first : first + SESSIONS_PER_TASK])


def judge_after_commit(approval_id: str) -> None:
    """Enqueue the judge for an approval once the current transaction is committed.

    Parameters
    ----------
    approval_id
        Public id. If the task is lost, a worker finds the approval within seconds.
    """
    transaction.on_commit(
        lambda: publisher.enqueue((JUDGE, approval_id), lambda _: _send(JUDGE, approval_id)), robust=True
    )
