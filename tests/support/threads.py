"""Threads with connections of their own, for tests of locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from django.db import connection

from detection.sql.pipeline import has_nodes
from tests.support.patience import PATIENCE_SECONDS

_Value = TypeVar("_Value")


class Worker(threading.Thread, Generic[_Value]):
    """Runs a function and closes its connection. Whoever waits for it does so for a minute, unless told otherwise."""

    def __init__(self, do: Callable[..., _Value], *arguments: Any) -> None:
        super().__init__(daemon=True)
        self._do, self._arguments = do, arguments
        self._returned: _Value
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._returned = self._do(*self._arguments)
        except BaseException as error:  # noqa: BLE001 (raised again where the result is read)
            self._raised = error
        finally:
            connection.close()

    def result(self, seconds: float = PATIENCE_SECONDS) -> _Value:
        """Wait for the function; return its value, or raise what it raised."""
        self.join(seconds)
        assert not self.is_alive(), "the thread still runs"
        if self._raised is not None:
            raise self._raised
        return self._returned


def in_thread(do: Callable[..., _Value], *arguments: Any) -> Worker[_Value]:
    """Run a function in a thread of its own."""
    thread = Worker(do, *arguments)
    thread.start()
    return thread


def all_results(threads: Iterable[Worker[_Value]]) -> list[_Value]:
    """Wait for all of these threads, and return their values."""
    return [thread.result() for thread in threads]


def wait_until_blocked(count: int = 1) -> int:
    """Wait until so many connections to this database wait for locks; return the process id of one's backend."""
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    if has_nodes():  # Then a process of a node waits for one of ours, whose number is the last ten digits.
        query += " UNION SELECT (waiting_global_pid % 10000000000)::int FROM citus_internal_global_blocked_processes()"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction would see what it saw before
            cursor.execute(query)
            if len(rows := cursor.fetchall()) >= count:
                return int(rows[0][0])
        time.sleep(0.01)
    raise AssertionError(f"fewer than {count} wait")
