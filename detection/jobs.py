"""Task names, and the only sender of tasks: after commit, beside the request."""

from __future__ import annotations

from functools import partial

from celery import current_app
from django.db import transaction

from detection.doorbell import Doorbell

EVALUATE, SWEEP, HOUSEKEEPING = "detection.evaluate", "detection.sweep", "detection.housekeeping"
JUDGE, CLOSE_QUESTIONS = "detection.judge", "detection.close_questions"
bell = Doorbell("jobs")


def _send(name: str, *arguments: object) -> None:
    # One connection attempt and no retry: the sweeper covers what could not be sent.
    current_app.send_task(name, args=arguments, retry=False, ignore_result=True)


def evaluate_after_commit(session_ids: list[int]) -> None:
    """Ask a worker to look at each session once the transaction in hand is committed."""

    def ring() -> None:
        for session_id in session_ids:
            bell.ring((EVALUATE, session_id), partial(_send, EVALUATE, session_id))

    transaction.on_commit(ring, robust=True)


def judge_after_commit(question_id: str) -> None:
    """Ask a worker to consult the judge about a question, by its public id; unheard, the question's deadline decides."""
    transaction.on_commit(
        lambda: bell.ring((JUDGE, question_id), partial(_send, JUDGE, question_id)), robust=True
    )
