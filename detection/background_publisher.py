"""Hands tasks and hints to the broker from a background thread, so that a slow broker never delays a request.

Items for one receiver are collected in a bounded queue and sent together, each once. Losing an item is harmless: the
sweeper finds sessions with unevaluated events in Postgres, and pages resume by cursor. Anything that must not be lost
belongs in the database.
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
MAX_QUEUED = 10_000
MAX_BATCH = 200
Send = Callable[[list[Any]], None]


class BackgroundPublisher:
    """A bounded queue per receiver and one thread that sends; recreated after a fork.

    Parameters
    ----------
    name
        Name in logs and metrics.
    pause_seconds
        Pause after each batch, during which more items are collected.
    max_queued
        Maximum number of items that wait for all receivers, and of receivers; any more are dropped and counted.

    Attributes
    ----------
    dropped, failed
        Items, or receivers without any, dropped because the queue was full, and batches that could not be sent, since
        the process started.
    """

    def __init__(self, name: str, pause_seconds: float = 0.0, max_queued: int = MAX_QUEUED) -> None:
        self.name = name
        self.pause_seconds, self.max_queued = pause_seconds, max_queued
        self.dropped = 0
        self.failed = 0
        self._queues: dict[Hashable, tuple[Send, dict[Hashable, None]]] = {}
        self._queued = 0
        self._changed = threading.Condition()
        self._pid = 0

    def enqueue(self, receiver: Hashable, send: Send, *items: Hashable) -> None:
        """Queue items for a receiver; the thread calls `send` with all that are queued by then, each once.

        Costs a few microseconds and never blocks on the broker. Without items, `send` is called with an empty list.
        """
        with self._changed:
            if self._pid != os.getpid():
                self._pid, self._queued = os.getpid(), 0
                self._queues.clear()
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
            known = self._queues.get(receiver)
            queue = known[1] if known else {}
            new = [item for item in items if item not in queue]
            if known is not None and not new:
                return  # the thread knows already
            if self._queued + len(new) > self.max_queued or (
                known is None and len(self._queues) >= self.max_queued
            ):
                self.dropped += len(new) or 1
                return
            self._queues.setdefault(receiver, (send, queue))
            queue.update(dict.fromkeys(new))
            self._queued += len(new)
            self._changed.notify()

    def _next_batch(self) -> tuple[Send, list[Any]]:
        with self._changed:
            while not self._queues:
                self._changed.wait()
            receiver = next(iter(self._queues))
            send, queue = self._queues.pop(receiver)
            batch = list(islice(queue, MAX_BATCH))
            for item in batch:
                del queue[item]
            if queue:
                self._queues[receiver] = (send, queue)  # behind the other receivers
            self._queued -= len(batch)
            return send, batch

    def _run(self) -> None:
        while True:
            send, batch = self._next_batch()
            try:
                send(batch)
            except Exception as error:  # noqa: BLE001 - whatever the broker raises, the sweeper does the work
                self.failed += 1
                if self.failed in (1, 10) or self.failed % 100 == 0:
                    log.warning(
                        "publish_failed", publisher=self.name, failures=self.failed, error=str(error)[:200]
                    )
            time.sleep(self.pause_seconds)
