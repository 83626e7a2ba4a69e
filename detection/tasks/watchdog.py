"""Ends a worker or beat that has stopped working, so that it is replaced; shows the supervisor that it works."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time
from typing import Final

import redis
import structlog
from celery.signals import beat_init, task_postrun, task_prerun, worker_init
from django.conf import settings

from detection import jobs
from detection.tasks.periodic import Periodic

log = structlog.get_logger(__name__)
PERIOD_SECONDS: Final = 1.0
HANG_SECONDS: Final = 30.0
"""A process in which no thread could run for this time ends itself, with the stack of each thread in its log."""
DEAF_SECONDS: Final = 60.0
"""A worker counts as deaf if tasks wait in the broker and it has run none for this time, as after some reconnects."""
LOOK_SECONDS: Final = 10.0
EXIT_STATUS: Final = 70


class Consumption:
    """Whether this worker still takes tasks from the broker.

    Parameters
    ----------
    deaf_seconds
        Time without a task after which tasks that wait in the broker are a sign.
    """

    def __init__(self, deaf_seconds: float = DEAF_SECONDS) -> None:
        self._deaf_seconds = deaf_seconds
        self._running, self._last_at, self._next_look = 0, time.monotonic(), 0.0
        self._had_waiting = False

    def start_task(self, **_: object) -> None:
        """Note that a task begins."""
        self._running += 1
        self._last_at, self._had_waiting = time.monotonic(), False

    def end_task(self, **_: object) -> None:
        """Note that a task has ended."""
        self._running -= 1
        self._last_at = time.monotonic()

    def is_deaf(self) -> bool:
        """Return whether tasks waited at two checks in a row while none ran here; False without a broker."""
        now = time.monotonic()
        if self._running or now - self._last_at < self._deaf_seconds or now < self._next_look:
            return False
        self._next_look = now + min(LOOK_SECONDS, self._deaf_seconds)
        had_waiting = self._had_waiting
        try:
            self._had_waiting = jobs.waiting_tasks() > 0
        except redis.RedisError:
            self._had_waiting = False
        return had_waiting and self._had_waiting


class Watchdog(Periodic):
    """Checks the process every `PERIOD_SECONDS`; stopped, it leaves the process alone."""

    def __init__(self, consumption: Consumption | None = None) -> None:
        super().__init__("watchdog", PERIOD_SECONDS, self._check)
        self._consumption = consumption

    def stop(self, until: float | None = None) -> None:
        """Stop checking: a shutdown may take longer than a hang."""
        super().stop(until)
        faulthandler.cancel_dump_traceback_later()

    def _check(self) -> None:
        # Needs neither this thread nor the interpreter's lock to end the process.
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)
        if self._consumption is not None and self._consumption.is_deaf():
            log.error("worker_deaf", seconds=DEAF_SECONDS)
            os._exit(EXIT_STATUS)
        if settings.HEARTBEAT_FILE:
            with contextlib.suppress(OSError):
                os.utime(settings.HEARTBEAT_FILE)


@worker_init.connect(dispatch_uid="detection.watchdog")
def _start_in_worker(**_: object) -> None:
    consumption = Consumption()
    task_prerun.connect(consumption.start_task, weak=False, dispatch_uid="detection.watchdog")
    task_postrun.connect(consumption.end_task, weak=False, dispatch_uid="detection.watchdog")
    Watchdog(consumption).start()


@beat_init.connect(dispatch_uid="detection.watchdog")
def _start_in_beat(**_: object) -> None:
    Watchdog().start()
