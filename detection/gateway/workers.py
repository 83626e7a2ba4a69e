"""Runs database work of the gateway in a bounded number of threads, each piece with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from django.db import DatabaseError, close_old_connections

from detection.sql.deadlines import deadline

Result = TypeVar("Result")
THREADS: Final = 8
MAX_WAITING: Final = 400
"""Pieces of work that run or wait for a thread; beyond, the database counts as away."""


class WorkersBusy(DatabaseError):
    """There was no result before the deadline."""


class DatabaseWorkers:
    """A bounded pool of threads with database connections."""

    def __init__(self, threads: int = THREADS, max_waiting: int = MAX_WAITING) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gateway")
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """Run `work` in a thread.

        Raises
        ------
        WorkersBusy
            If there is no result after `seconds`. Work that has not begun by then never runs.
        """
        if self._waiting >= self._max_waiting:
            raise WorkersBusy("too much work waits for the database")
        until = time.monotonic() + seconds
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, _run, work, until)
        future.add_done_callback(self._done)
        try:
            # Work that runs is not interrupted: it may have stored something.
            return await asyncio.wait_for(asyncio.shield(future), seconds)
        except TimeoutError:
            future.cancel()
            raise WorkersBusy("no result from the database in time") from None

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieved here in case nobody waits any more


def _run(work: Callable[[], Result], until: float) -> Result:
    if time.monotonic() >= until:
        raise WorkersBusy("no thread was free in time")
    close_old_connections()
    try:
        with deadline(until):
            return work()
    finally:
        close_old_connections()
