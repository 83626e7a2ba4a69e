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
from django.db.backends.postgresql.base import DatabaseWrapper

RETURN_SECONDS = 3.0
"""Requests end sooner. Connections that were closed while a test took the database away never return."""


@contextlib.contextmanager
def pooled() -> Iterator[None]:
    """Take all connections of this process from a pool, which the next test finds as it is left.

    A new connection costs as much as the work of many tests: the server starts a process for it, which then reads what
    it must know of each table.
    """
    _begin_anew()
    connections.settings[DEFAULT_DB_ALIAS]["OPTIONS"]["pool"] = {"min_size": 0, "max_size": 20, "timeout": 5}
    try:
        yield
    finally:
        if not _have_threads_ended():
            _wrapper().close_pool()
        del connections.settings[DEFAULT_DB_ALIAS]["OPTIONS"]["pool"]
        _begin_anew()


def close() -> None:
    """Close the pool after the last test, so that the database can be dropped."""
    pools = _wrapper()._connection_pools  # type: ignore[attr-defined]
    for pool in pools.values():
        pool.close()
    pools.clear()


def _have_threads_ended() -> bool:
    """Wait until requests that still run have returned their connections; return whether they have."""
    connection.close()
    pool = _wrapper().pool
    assert pool is not None
    deadline = time.monotonic() + RETURN_SECONDS
    while time.monotonic() < deadline:
        stats = pool.get_stats()
        if stats["pool_available"] == stats["pool_size"]:
            return True
        time.sleep(0.01)
    return False


def _begin_anew() -> None:
    """Close the connection of this thread and forget those of all others.

    Threads that outlive a test keep theirs, and Django closes each in the way of the settings of that moment: it would
    return one to a pool that it never came from, or keep another one out of its pool for ever.
    """
    connection.close()
    connections._connections = Local(connections.thread_critical)  # type: ignore[attr-defined]


def _wrapper() -> DatabaseWrapper:
    wrapper = connections[DEFAULT_DB_ALIAS]
    assert isinstance(wrapper, DatabaseWrapper)
    return wrapper
