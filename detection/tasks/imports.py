"""Threads of the worker process that import uploaded transcripts.

They find their work in the database, without the broker, and any number of workers may run them: one works on the
imports of a project at a time.
"""

from __future__ import annotations

from typing import Final

from celery.signals import worker_init

from detection.services.ingestion import import_worker
from detection.tasks.evaluation_queue import yield_processors
from detection.tasks.periodic import Periodic

PERIOD_SECONDS: Final = 1.0
THREADS: Final = 3
"""Several, so that the files of one project do not delay another's. The last one takes only what is quick."""


class ImportThread(Periodic):
    """Looks for open imports every second."""

    def __init__(self, number: int) -> None:
        super().__init__(f"imports-{number}", PERIOD_SECONDS, self._import)
        self._is_quick = number == THREADS - 1

    def _import(self) -> None:
        yield_processors()
        import_worker.run_waiting(lambda: self.is_stopped, is_quick=self._is_quick)


@worker_init.connect(dispatch_uid="detection.imports")
def _start(**_: object) -> None:
    for number in range(THREADS):
        ImportThread(number).start()
