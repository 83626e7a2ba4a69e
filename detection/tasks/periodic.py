"""A thread that runs a function periodically in a worker process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from django.db import close_old_connections, connection

from detection.web import process_metrics

log = structlog.get_logger(__name__)
_STOP_TIMEOUT_SECONDS = 8.0


class Periodic:
    """Runs a function periodically until it is stopped; an exception is logged and the next run tries again.

    Parameters
    ----------
    name
        Name of the thread.
    period_seconds
        Pause between two runs.
    work
        The function; its return value is ignored.
    """

    def __init__(self, name: str, period_seconds: float, work: Callable[[], object]) -> None:
        self._name, self._period_seconds, self._work = name, period_seconds, work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first run comes one period later."""
        self._thread.start()

    def stop(self) -> None:
        """Wait a few seconds for the current run to end; another worker takes over what it leaves."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_SECONDS)

    @property
    def is_stopped(self) -> bool:
        """Whether the current run is the last; long runs check it."""
        return self._stopped.is_set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            try:
                close_old_connections()
                self._work()
                process_metrics.PERIODIC_RUNS.labels(self._name, "done").inc()
            except Exception:
                process_metrics.PERIODIC_RUNS.labels(self._name, "failed").inc()
                # The next run tries again; a restarting database is the usual cause.
                log.exception("periodic_failed", work=self._name)
            finally:
                connection.close()
