"""A pool of database connections for tests whose servers run in threads, as installations have one.

Settings of tests have none: each request and each piece of work of the gateway would open a connection, which costs more
than the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from asgiref.local import Local
from django.db import DEFAULT_DB_ALIAS, connection, connections


@contextlib.contextmanager
def pooled() -> Iterator[None]:
    """Take all connections of this process from a pool, which is closed at the end."""
    options = connections.settings[DEFAULT_DB_ALIAS]["OPTIONS"]
    _begin_anew()
    options["pool"] = {"min_size": 0, "max_size": 20, "timeout": 5}
    try:
        yield
    finally:
        connection.close_pool()
        del options["pool"]
        _begin_anew()


def _begin_anew() -> None:
    """Close the connection of this thread and forget those of all others.

    Threads that outlive a test keep theirs, and Django closes each in the way of the settings of that moment: it would
    return one to a pool that it never came from, or keep another one out of its pool for ever.
    """
    connection.close()
    connections._connections = Local(connections.thread_critical)
