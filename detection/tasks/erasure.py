"""A thread of each worker process that carries out erasures, without the broker.

It finds its work in the database; any number of workers may run it.
"""

from __future__ import annotations

from typing import Final

from celery.signals import worker_init

from detection.services.retention import erasure
from detection.tasks.evaluation_queue import yield_processors
from detection.tasks.periodic import Periodic

PERIOD_SECONDS: Final = 1.0


class ErasureThread(Periodic):
    """Looks for open erasures every second."""

    def __init__(self) -> None:
        super().__init__("erasure", PERIOD_SECONDS, self._work_on)

    def _work_on(self) -> None:
        yield_processors()
        erasure.run_waiting(lambda: self.is_stopped)


@worker_init.connect(dispatch_uid="detection.erasure")
def _start(**_: object) -> None:
    ErasureThread().start()
