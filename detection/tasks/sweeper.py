"""A thread of the worker process that sweeps without a broker.

Tasks reach a worker through the broker only. While it is away, this thread finds the sessions that wait and evaluates
them; while it is there, it finds nothing to do. Any number of workers may run one: the sweep itself takes a lock.
"""

from __future__ import annotations

import structlog
from celery.signals import worker_init, worker_shutting_down

from detection.services.approvals import decisions
from detection.services.incidents import triage
from detection.services.maintenance import heartbeats, retention
from detection.services.sessions import evaluation
from detection.tasks.periodic import Periodic

log = structlog.get_logger(__name__)
PERIOD_SECONDS = 5.0
MAX_PASSES = 20
"""A session that somebody else holds is met again and again; one period later is soon enough for it."""


class Sweeper(Periodic):
    """Sweeps every `period_seconds` until it is stopped."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        super().__init__("sweeper", period_seconds, self._sweep)
        self._is_tidy = False

    def _sweep(self) -> None:
        decisions.close_overdue()
        triage.wake_due()
        self._sweep_until_done()
        if not self._is_tidy:
            # What a server that was off for long has missed is made good now, not with the schedule's next turn.
            retention.housekeeping()
            heartbeats.note("housekeeping")
            self._is_tidy = True

    def _sweep_until_done(self) -> None:
        rescued = 0
        for _ in range(MAX_PASSES):
            looked_at = evaluation.sweep()
            rescued += looked_at
            if not looked_at or self.is_stopped:
                break
        heartbeats.note("sweeper", rescued=rescued)
        if rescued:
            log.info("sweeper_rescued", sessions=rescued)


_sweeper: Sweeper | None = None


@worker_init.connect(dispatch_uid="detection.sweeper")
def _start(**_: object) -> None:
    global _sweeper
    _sweeper = Sweeper()
    _sweeper.start()


@worker_shutting_down.connect(dispatch_uid="detection.sweeper")
def _stop(**_: object) -> None:
    if _sweeper is not None:
        _sweeper.stop()
