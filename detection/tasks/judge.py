"""Tasks around approvals: consulting the judge, and closing what nobody answered in time.

A thread of the worker process takes up what the judge was to be asked and no task has told of: a held call waits for it, so
that a broker which forgets costs seconds and not the verdict. Any number of workers may run one: an approval is asked once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog
from celery import shared_task
from celery.signals import worker_init, worker_shutting_down
from django.db import close_old_connections, connection

from detection import jobs
from detection.services.approvals import decisions, judge_consultation
from detection.tasks.periodic import Periodic

log = structlog.get_logger(__name__)
LOOK_PERIOD_SECONDS = 1.0
MOST_AT_ONCE = 4
"""The judge is waited for; this many of one worker's threads do so at most, besides those of its tasks."""


@shared_task(name=jobs.JUDGE)
def ask_judge(approval_id: str) -> None:
    """Consult the judge about an approval; a second delivery finds nothing left to ask."""
    judge_consultation.consult_judge(approval_id)


@shared_task(name=jobs.CLOSE_APPROVALS)
def close_approvals() -> None:
    """Close the approvals whose time is over and that nobody has read since."""
    decisions.close_overdue()


class LeftLying:
    """Asks the judge what no task has asked, several approvals at a time and none twice at once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="judge")
        self._under_way: set[str] = set()
        self._thread = Periodic("judge", LOOK_PERIOD_SECONDS, self._look)

    def start(self) -> None:
        """Start looking; the first look comes one period later."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what is being asked comes to its end, within the judge's own deadline."""
        self._thread.stop()
        self._pool.shutdown(cancel_futures=True)

    def _look(self) -> None:
        for approval_id in judge_consultation.unclaimed_approvals():
            if approval_id not in self._under_way:
                self._under_way.add(approval_id)
                self._pool.submit(self._ask, approval_id)

    def _ask(self, approval_id: str) -> None:
        try:
            close_old_connections()
            if judge_consultation.consult_judge(approval_id):
                log.info("judge_approval_rescued", approval=approval_id)
        except Exception:
            log.exception("judge_not_asked", approval=approval_id)
        finally:
            connection.close()
            self._under_way.discard(approval_id)


_left_lying: LeftLying | None = None


@worker_init.connect(dispatch_uid="detection.judge")
def _start(**_: object) -> None:
    global _left_lying
    _left_lying = LeftLying()
    _left_lying.start()


@worker_shutting_down.connect(dispatch_uid="detection.judge")
def _stop(**_: object) -> None:
    if _left_lying is not None:
        _left_lying.stop()
