"""A thread of each worker, and of beat, that evaluates sessions whose task was lost, without the broker.

Any number of processes may run one: the sweep takes a lock. That of beat finds what is left while workers die or hang.
"""

from __future__ import annotations

import structlog
from celery.signals import beat_init, worker_init

from detection.services.alerting import postponing
from detection.services.approvals import decisions
from detection.services.containments import containments, settling
from detection.services.maintenance.heartbeats import heartbeats
from detection.services.policies import overrides
from detection.services.retention import retention
from detection.services.sessions import evaluation, stalled
from detection.sql.advisory_locks import AdvisoryLock
from detection.tasks.periodic import Periodic

log = structlog.get_logger(__name__)
PERIOD_SECONDS = 5.0
MAX_PASSES = 20
"""A session that another process holds locked is left to the next period after this many passes."""


class Sweeper(Periodic):
    """Sweeps every `period_seconds` until it is stopped."""

    def __init__(
        self, period_seconds: float = PERIOD_SECONDS, lock: AdvisoryLock = AdvisoryLock.SWEEP
    ) -> None:
        super().__init__(
            "sweeper",
            period_seconds,
            self._sweep_until_done,
            decisions.close_overdue,
            containments.note_ended,
            settling.settle_due,
            overrides.expire_due,
            postponing.wake_due,
            stalled.report_due,
            self._tidy_once,
        )
        self._lock = lock
        self._is_tidy = False

    def _sweep_until_done(self) -> None:
        rescued = 0
        for _ in range(MAX_PASSES):
            looked_at = evaluation.sweep(self._lock)
            rescued += looked_at
            if not looked_at or self.is_stopped:
                break
        heartbeats.note("sweeper", rescued=rescued)
        if rescued:
            log.info("sweeper_rescued", sessions=rescued)

    def _tidy_once(self) -> None:
        """Run the housekeeping that was missed while the server was down, now instead of at its next time."""
        if not self._is_tidy:
            retention.housekeeping()
            heartbeats.note("housekeeping")
            self._is_tidy = True


@worker_init.connect(dispatch_uid="detection.sweeper")
def _start_in_worker(**_: object) -> None:
    Sweeper().start()


@beat_init.connect(dispatch_uid="detection.sweeper")
def _start_in_beat(**_: object) -> None:
    Sweeper(lock=AdvisoryLock.SWEEP_OUTSIDE_WORKERS).start()
