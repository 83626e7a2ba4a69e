"""A thread of each worker process that works on what-ifs, without the broker and after everything else.

It finds its work in the database; any number of workers may run it. Evaluation shares the interpreter with it, so it
waits between batches of events while sessions wait for evaluation in this worker.
"""

from __future__ import annotations

import time
from typing import Final

from celery.signals import worker_init

from detection.services.what_if import worker
from detection.tasks.evaluation_queue import evaluation_queue, yield_processors
from detection.tasks.periodic import Periodic

PERIOD_SECONDS: Final = 1.0
BREATH_SECONDS: Final = 0.002
"""Pause after every batch: threads of evaluation that wait for the interpreter get it."""
MAX_WAIT_SECONDS: Final = 1.0
"""Under constant load, a what-if continues with one batch in this time."""
_CHECK_SECONDS: Final = 0.02


class WhatIfThread(Periodic):
    """Looks for open what-ifs every second."""

    def __init__(self) -> None:
        super().__init__("what-if", PERIOD_SECONDS, self._work_on)

    def _work_on(self) -> None:
        yield_processors()
        worker.run_waiting(lambda: self.is_stopped, self._pause)

    def _pause(self) -> None:
        time.sleep(BREATH_SECONDS)
        until = time.monotonic() + MAX_WAIT_SECONDS
        while evaluation_queue.is_busy and not self.is_stopped and time.monotonic() < until:
            time.sleep(_CHECK_SECONDS)


@worker_init.connect(dispatch_uid="detection.what_if")
def _start(**_: object) -> None:
    WhatIfThread().start()
