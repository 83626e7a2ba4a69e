"""Rings doorbells (Celery, the channel layer) beside the request, never inside it.

A refusing or silent broker must not slow an answer, so what is to be sent goes through a bounded queue to one daemon
thread of the process. Rings are keyed: while one waits, an equal one is dropped. Losing a ring is harmless: the sweeper
finds unevaluated sessions in Postgres, and pages resume by cursor. Nothing that must not get lost belongs here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable

import structlog

log = structlog.get_logger(__name__)
MAX_WAITING = 10_000


class Doorbell:
    """A keyed, bounded queue with one sending thread, made anew after a fork."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped = 0
        self.failed = 0
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._pid = 0

    def ring(self, key: Hashable, send: Callable[[], None]) -> None:
        """Have `send` called soon; of equal keys that wait at the same time only the newest is sent."""
        with self._changed:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._waiting.clear()
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
            if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
                return
            self._waiting[key] = send
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                key = next(iter(self._waiting))
                send = self._waiting.pop(key)
            try:
                send()
            except Exception as error:  # noqa: BLE001 - a bell that cannot be rung is counted; the sweeper does the work
                self.failed += 1
                if self.failed in (1, 10) or self.failed % 100 == 0:
                    log.warning(
                        "doorbell_failed", bell=self.name, failures=self.failed, error=str(error)[:200]
                    )
