"""A thread that does something every so often, beside the tasks of a worker. What it does belongs to the services."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from django.db import close_old_connections, connection

log = structlog.get_logger(__name__)
_END_PATIENCE_SECONDS = 8.0


class Periodic:
    """Does something every so often until it is stopped; a failure is logged and the next turn tries again.

    Parameters
    ----------
    name
        Of the thread.
    period_seconds
        Rest between two turns.
    work
        What to do; its return value is not looked at.
    """

    def __init__(self, name: str, period_seconds: float, work: Callable[[], object]) -> None:
        self._name, self._period_seconds, self._work = name, period_seconds, work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first turn comes one period later."""
        self._thread.start()

    def stop(self) -> None:
        """Let the turn in hand come to its end, for a few seconds; what it holds then is taken over by another worker."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_END_PATIENCE_SECONDS)

    @property
    def is_stopped(self) -> bool:
        """Whether the turn in hand is the last; one that takes long looks at it."""
        return self._stopped.is_set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            try:
                close_old_connections()
                self._work()
            except Exception:
                # Whatever it was, the next turn tries again; a database that restarts is the usual case.
                log.exception("periodic_failed", work=self._name)
            finally:
                connection.close()
