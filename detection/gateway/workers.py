"""Runs database work of the gateway in a bounded number of threads, each task with a deadline.

While the database is away, work fails at once, so that agents do not wait for a deadline with every request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connection

from detection.sql.deadlines import deadline

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
THREADS: Final = 8
PATIENCE_SECONDS: Final = 1.0
"""After this time, a trivial query checks whether the database is available."""
PROBE_SECONDS: Final = 1.0
PROBE_PERIOD_SECONDS: Final = 1.0
MAX_WAITING: Final = 400
"""Maximum number of running and waiting tasks; beyond it, the database counts as unavailable."""


class WorkersBusy(DatabaseError):
    """There was no result before the deadline."""


class DatabaseAway(DatabaseError):
    """The database has not responded lately."""


class DatabaseWorkers:
    """A bounded pool of threads with database connections.

    Attributes
    ----------
    is_away
        Whether the database does not respond to a trivial query; asked again every `PROBE_PERIOD_SECONDS`.
    """

    def __init__(self, threads: int = THREADS, max_waiting: int = MAX_WAITING) -> None:
        self.is_away = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gateway")
        self._probe_thread = ThreadPoolExecutor(1, thread_name_prefix="gateway-probe")
        self._probing: asyncio.Task[None] | None = None
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """Run `work` in a thread.

        Raises
        ------
        WorkersBusy
            If there is no result after `seconds`. Work that has not begun by then never runs.
        DatabaseAway
            Without a wait, while the database is away.
        """
        if self.is_away:
            raise DatabaseAway("the database does not respond")
        if self._waiting >= self._max_waiting:
            raise WorkersBusy("too much work waits for the database")
        until = time.monotonic() + seconds
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, _run, work, until)
        future.add_done_callback(self._done)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait((future,), timeout=PATIENCE_SECONDS)
                if not future.done():
                    self._suspect()
                # Work that runs is not interrupted: it may have stored something.
                return await asyncio.shield(future)
        except TimeoutError:
            future.cancel()
            raise WorkersBusy("no result from the database in time") from None
        except (OperationalError, InterfaceError):
            self._suspect()
            raise

    def _suspect(self) -> None:
        """Find out whether the database is away, or only this piece of work is slow."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        """Query the database until it responds."""
        loop = asyncio.get_running_loop()
        while True:
            until = time.monotonic() + PROBE_SECONDS
            try:
                await loop.run_in_executor(self._probe_thread, _run, _trivial_query, until)
            except Exception as error:  # noqa: BLE001 (whatever the reason, the database is of no use)
                if not self.is_away:
                    log.warning("gateway_database_away", error=f"{type(error).__name__}: {error}"[:300])
                self.is_away = True
            else:
                if self.is_away:
                    log.warning("gateway_database_back")
                self.is_away = False
                return
            await asyncio.sleep(PROBE_PERIOD_SECONDS)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieved here in case nobody waits any more


def _trivial_query() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _run(work: Callable[[], Result], until: float) -> Result:
    if time.monotonic() >= until:
        raise WorkersBusy("no thread was free in time")
    close_old_connections()
    try:
        with deadline(until):
            return work()
    finally:
        close_old_connections()
