"""Rings doorbells (Celery, the channel layer) beside the request, never inside it.

A refusing or silent broker must not slow an answer, so what is to be sent goes through a bounded queue to one daemon
thread of the process. What is for the same receiver waits together and leaves together: under load the cost of sending is
shared, and equal news are sent once. Losing a ring is harmless: the sweeper finds unevaluated sessions in Postgres, and
pages resume by cursor. Nothing that must not get lost belongs here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any

import structlog

log = structlog.get_logger(__name__)
MAX_WAITING = 10_000
MAX_TOGETHER = 200
Send = Callable[[list[Any]], None]


class Doorbell:
    """A bounded queue by receiver with one sending thread, made anew after a fork.

    Parameters
    ----------
    name
        For logs and metrics.
    pause_seconds
        Rest after each sending, in which more can gather.
    """

    def __init__(self, name: str, pause_seconds: float = 0.0) -> None:
        self.name = name
        self.pause_seconds = pause_seconds
        self.dropped = 0
        self.failed = 0
        self._waiting: dict[Hashable, tuple[Send, dict[Hashable, None]]] = {}
        self._count = 0
        self._changed = threading.Condition()
        self._pid = 0

    def ring(self, receiver: Hashable, send: Send, *news: Hashable) -> None:
        """Have `send` called soon with the news that wait for `receiver` by then, each once."""
        with self._changed:
            if self._pid != os.getpid():
                self._pid, self._count = os.getpid(), 0
                self._waiting.clear()
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
            _, waiting = self._waiting.setdefault(receiver, (send, {}))
            fresh = [one for one in news if one not in waiting]
            if self._count + len(fresh) > MAX_WAITING:
                self.dropped += len(fresh)
                return
            waiting.update(dict.fromkeys(fresh))
            self._count += len(fresh)
            self._changed.notify()

    def _next(self) -> tuple[Send, list[Any]]:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            receiver = next(iter(self._waiting))
            send, waiting = self._waiting.pop(receiver)
            taken = list(islice(waiting, MAX_TOGETHER))
            for one in taken:
                del waiting[one]
            if waiting:
                self._waiting[receiver] = (send, waiting)  # behind the other receivers
            self._count -= len(taken)
            return send, taken

    def _run(self) -> None:
        while True:
            send, news = self._next()
            try:
                send(news)
            except Exception as error:  # noqa: BLE001 - a bell that cannot be rung is counted; the sweeper does the work
                self.failed += 1
                if self.failed in (1, 10) or self.failed % 100 == 0:
                    log.warning(
                        "doorbell_failed", bell=self.name, failures=self.failed, error=str(error)[:200]
                    )
            time.sleep(self.pause_seconds)
