"""Task names, and the only sender of tasks: after commit, beside the request."""

from __future__ import annotations

from celery import current_app
from django.db import transaction

from detection.background_publisher import Doorbell

EVALUATE, SWEEP, HOUSEKEEPING = "detection.evaluate", "detection.sweep", "detection.housekeeping"
JUDGE, CLOSE_APPROVALS = "detection.judge", "detection.close_approvals"
SESSIONS_PER_TASK = 20
"""So many that sending costs little beside the work, so few that several workers get a share."""
bell = Doorbell("jobs", pause_seconds=0.005)


def _send(name: str, *arguments: object) -> None:
    # One connection attempt and no retry: the sweeper covers what could not be sent.
    current_app.send_task(name, args=arguments, retry=False, ignore_result=True)


def evaluate_after_commit(session_ids: list[int]) -> None:
    """Ask a worker to look at each session once the transaction in hand is committed."""
    transaction.on_commit(lambda: bell.ring(EVALUATE, _send_evaluate, *session_ids), robust=True)


def _send_evaluate(session_ids: list[int]) -> None:
    for first in range(0, len(session_ids), SESSIONS_PER_TASK):
        _send(EVALUATE, session_ids[first : first + SESSIONS_PER_TASK])


def judge_after_commit(approval_id: str) -> None:
    """Ask a worker to consult the judge about an approval, by its public id; unheard, workers find it within seconds."""
    transaction.on_commit(
        lambda: bell.ring((JUDGE, approval_id), lambda _: _send(JUDGE, approval_id)), robust=True
    )
