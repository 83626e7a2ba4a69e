"""A pool of database connections for tests whose servers run in threads, as installations have one.

Settings of tests have none: each request and each piece of work of the gateway would open a connection, which costs more
than the work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from asgiref.local import Local
from django.db import DEFAULT_DB_ALIAS, connection, connections

RETURN_SECONDS = 3.0
"""Requests end sooner. Connections that were closed while a test took the database away never return."""


@contextlib.contextmanager
def pooled() -> Iterator[None]:
    """Take all connections of this process from a pool, which is closed at the end."""
    options = connections.settings[DEFAULT_DB_ALIAS]["OPTIONS"]
    _begin_anew()
    options["pool"] = {"min_size": 0, "max_size": 20, "timeout": 5}
    try:
        yield
    finally:
        _wait_for_threads()
        connection.close_pool()
        del options["pool"]
        _begin_anew()


def _wait_for_threads() -> None:
    """Wait until requests that still run have returned their connections.

    One that is still out when the others are forgotten is never closed, and the database cannot be dropped at the end.
    """
    connection.close()
    deadline = time.monotonic() + RETURN_SECONDS
    while time.monotonic() < deadline:
        stats = connection.pool.get_stats()
        if stats["pool_available"] == stats["pool_size"]:
            return
        time.sleep(0.01)


def _begin_anew() -> None:
    """Close the connection of this thread and forget those of all others.

    Threads that outlive a test keep theirs, and Django closes each in the way of the settings of that moment: it would
    return one to a pool that it never came from, or keep another one out of its pool for ever.
    """
    connection.close()
    connections._connections = Local(connections.thread_critical)
