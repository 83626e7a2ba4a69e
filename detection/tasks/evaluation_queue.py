"""The sessions that tasks have named to this worker, evaluated project by project in turn.

A task only adds sessions, so that the broker's queue, which knows one order only, never has a backlog. A session takes
a slice of at most one transaction per turn and queues again with what is left. What is lost with a worker is found by
the sweeper.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import structlog
from celery.signals import worker_init
from django.db import close_old_connections, connection

from detection.models import SessionKey
from detection.services.maintenance.heartbeats import heartbeats
from detection.services.sessions import evaluation
from detection.tasks.periodic import stop_deadline, stop_with_worker

log = structlog.get_logger(__name__)
MAX_QUEUED_PER_PROJECT: Final = 10_000
NICENESS: Final = 5
"""A third of the weight of `web` if both need a processor."""


class EvaluationQueue:
    """Waiting sessions by project, each once."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._by_project: dict[int, dict[int, None]] = {}
        self._threads: list[threading.Thread] = []
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether sessions wait; less urgent work yields to them."""
        return bool(self._by_project)

    def add(self, project_id: int, session_ids: Iterable[int]) -> None:
        """Queue sessions; above the limit of a project they are left to the sweeper."""
        with self._changed:
            waiting = self._by_project.setdefault(project_id, {})
            for session_id in session_ids:
                if len(waiting) < MAX_QUEUED_PER_PROJECT:
                    waiting[session_id] = None
            if waiting:
                self._changed.notify(len(waiting))
            else:
                del self._by_project[project_id]

    def take(self) -> SessionKey | None:
        """Wait for a session and return it: of the project that has waited longest for its turn. None when stopped."""
        with self._changed:
            while not self._by_project and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped:
                return None
            project_id, waiting = next(iter(self._by_project.items()))
            session_id = next(iter(waiting))
            del waiting[session_id], self._by_project[project_id]
            if waiting:
                self._by_project[project_id] = waiting  # behind the others
            return SessionKey(project_id, session_id)

    def start(self, threads: int) -> None:
        """Start the threads that evaluate. They stop with their worker."""
        stop_with_worker(self)
        self._threads = [
            threading.Thread(target=self._run, name=f"evaluation-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop_soon(self) -> None:
        """Let the current slices be the last."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def stop(self, until: float | None = None) -> None:
        """Wait for the current slices to end, a few seconds by default."""
        self.stop_soon()
        until = until or stop_deadline()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        yield_processors()
        while (key := self.take()) is not None:
            try:
                close_old_connections()
                evaluation.evaluate(key)
                heartbeats.note("worker")
            except Exception:
                # The thread continues with other sessions; the sweeper tries this one again.
                log.exception("evaluation_failed", session_id=key.session_id)
            finally:
                connection.close()


def yield_processors() -> None:
    """Give guard requests on the same machine priority on the processors.

    On Linux, this concerns the calling thread only.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(NICENESS, os.nice(0)))


evaluation_queue = EvaluationQueue()


@worker_init.connect(dispatch_uid="detection.evaluation_queue")
def _start(sender: Any, **_: object) -> None:
    evaluation_queue.start(sender.concurrency if isinstance(sender.concurrency, int) else 1)
