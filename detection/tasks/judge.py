"""Tasks of approvals: consulting the judge, and closing overdue approvals.

A thread of the worker process finds approvals whose judge task was lost, so that a lost task costs the held call a few
seconds. Any number of workers may run one: an approval is put to the judge once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog
from celery import shared_task
from celery.signals import worker_init
from django.db import close_old_connections, connection

from detection import jobs
from detection.services.approvals import decisions, judge_consultation
from detection.tasks.periodic import Periodic

log = structlog.get_logger(__name__)
POLL_PERIOD_SECONDS = 1.0
MAX_CONSULTATIONS = 4
"""Threads that wait for the judge, in addition to those of the tasks."""


@shared_task(name=jobs.JUDGE)
def consult_judge(approval_id: str, project_id: int, *_later: object) -> None:
    """Consult the judge about an approval; a second delivery has no effect, and a later version may send more."""
    judge_consultation.consult_judge(approval_id, project_id)


@shared_task(name=jobs.CLOSE_APPROVALS)
def close_approvals() -> None:
    """Close overdue approvals."""
    decisions.close_overdue()


class UnclaimedApprovals(Periodic):
    """Consults the judge about approvals whose task was lost, several at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_CONSULTATIONS, thread_name_prefix="judge")
        self._in_progress: set[str] = set()
        super().__init__("judge", POLL_PERIOD_SECONDS, self._poll)

    def stop(self, until: float | None = None) -> None:
        """Stop polling. Consultations in progress end within the judge's deadline."""
        super().stop(until)
        self._pool.shutdown(cancel_futures=True)

    def _poll(self) -> None:
        for project_id, approval_id in judge_consultation.unclaimed_approvals():
            if approval_id not in self._in_progress:
                self._in_progress.add(approval_id)
                self._pool.submit(self._consult, project_id, approval_id)

    def _consult(self, project_id: int, approval_id: str) -> None:
        try:
            close_old_connections()
            if judge_consultation.consult_judge(approval_id, project_id):
                log.info("judge_task_recovered", approval=approval_id)
        except Exception:
            log.exception("judge_consultation_failed", approval=approval_id)
        finally:
            connection.close()
            self._in_progress.discard(approval_id)


@worker_init.connect(dispatch_uid="detection.judge")
def _start(**_: object) -> None:
    UnclaimedApprovals().start()
