"""A thread of the worker process that sweeps without a broker.

Tasks reach a worker through the broker only. While it is away, this thread finds the sessions that wait and evaluates
them; while it is there, it finds nothing to do. Any number of workers may run one: the sweep itself takes a lock.
"""

from __future__ import annotations

import threading

import structlog
from celery.signals import worker_init, worker_shutting_down
from django.db import close_old_connections, connection

from detection.services import evaluation, heartbeats, questions, retention

log = structlog.get_logger(__name__)
PERIOD_SECONDS = 5.0
MAX_PASSES = 20
"""A session that somebody else holds is met again and again; one period later is soon enough for it."""
_END_PATIENCE_SECONDS = 10.0


class Sweeper:
    """Sweeps every `period_seconds` until it is stopped."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        """Start the thread; the first sweep comes one period later."""
        self._thread.start()

    def stop(self) -> None:
        """Let the sweep in hand come to its end."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_END_PATIENCE_SECONDS)

    def _run(self) -> None:
        is_tidy = False
        while not self._stopped.wait(self._period_seconds):
            try:
                close_old_connections()
                questions.close_due()
                self._sweep_until_done()
                if not is_tidy:
                    # What a server that was off for long has missed is made good now, not with the schedule's next turn.
                    retention.housekeeping()
                    heartbeats.note("housekeeping")
                    is_tidy = True
            except Exception:
                # Whatever it was, the next sweep tries again; a database that restarts is the usual case.
                log.exception("sweeper_failed")
            finally:
                connection.close()

    def _sweep_until_done(self) -> None:
        rescued = 0
        for _ in range(MAX_PASSES):
            looked_at = evaluation.sweep()
            rescued += looked_at
            if not looked_at or self._stopped.is_set():
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
