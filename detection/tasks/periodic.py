"""Threads of a worker process: those that run a function periodically, and the end of all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog
from celery.signals import worker_shutting_down
from django.db import close_old_connections, connection

from detection.web import process_metrics

log = structlog.get_logger(__name__)
_STOP_TIMEOUT_SECONDS = 8.0
"""For all threads together: while the database is away, each of them waits for it."""


class Stoppable(Protocol):
    """What runs beside the tasks of a worker."""

    def stop_soon(self) -> None:
        """Let the current run be the last, without waiting for it."""

    def stop(self, until: float | None = None) -> None:
        """Wait for the current run to end: until a moment of the monotonic clock, or else a few seconds."""


_running: list[Stoppable] = []


def stop_with_worker(one: Stoppable) -> None:
    """Let something stop when its worker does."""
    _running.append(one)


@worker_shutting_down.connect(dispatch_uid="detection.periodic")
def stop_all(**_: object) -> None:
    """Stop everything that has begun, within one time for all."""
    stopping, _running[:] = [*_running], []
    for one in stopping:
        one.stop_soon()
    until = stop_deadline()
    for one in stopping:
        one.stop(until)


def stop_deadline() -> float:
    """Return until when a thread that is to stop now is waited for."""
    return time.monotonic() + _STOP_TIMEOUT_SECONDS


class Periodic:
    """Runs functions periodically, in turn, until it is stopped.

    An exception ends the function that raised it only. It is logged, and the next run tries again.

    Parameters
    ----------
    name
        Name of the thread.
    period_seconds
        Pause between two runs.
    works
        The functions; what they return is ignored.
    """

    def __init__(self, name: str, period_seconds: float, *works: Callable[[], object]) -> None:
        self._name, self._period_seconds, self._works = name, period_seconds, works
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first run comes one period later. It stops with its worker."""
        stop_with_worker(self)
        self._thread.start()

    def stop_soon(self) -> None:
        """Let the current run be the last."""
        self._stopped.set()

    def stop(self, until: float | None = None) -> None:
        """Wait for the current run to end, a few seconds by default; another worker takes over what it leaves."""
        self.stop_soon()
        if self._thread.is_alive():
            self._thread.join(max(0.0, (until or stop_deadline()) - time.monotonic()))

    @property
    def is_stopped(self) -> bool:
        """Whether the current run is the last; long runs check it."""
        return self._stopped.is_set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            failed = [work for work in self._works if not self.is_stopped and not self._is_done(work)]
            process_metrics.PERIODIC_RUNS.labels(self._name, "failed" if failed else "done").inc()
            connection.close()

    def _is_done(self, work: Callable[[], object]) -> bool:
        try:
            close_old_connections()
            work()
        except Exception:
            # The next run tries again; a restarting database is the usual cause.
            log.exception("periodic_failed", work=self._name)
            return False
        return True
