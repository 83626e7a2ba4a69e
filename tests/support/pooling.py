"""A pool of database connections for tests whose servers run in threads, as installations have one.

Settings of tests have none: each request and each piece of work of the gateway would open a connection, which costs more
than the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection

from detection.sql.postgresql.base import DeadlineConnection


@contextlib.contextmanager
def pool() -> Iterator[dict[str, Any]]:
    """Yield the options of a pool, which is closed at the end: nobody may be connected to a database that is dropped."""
    yield {"min_size": 0, "max_size": 20, "timeout": 5, "connection_class": DeadlineConnection}
    if kept := connection._connection_pools.pop(DEFAULT_DB_ALIAS, None):
        kept.close()


@contextlib.contextmanager
def pooled(options: dict[str, Any]) -> Iterator[None]:
    """Take all connections of this process from the pool."""
    connection.close()
    connection.settings_dict["OPTIONS"]["pool"] = options
    yield
    connection.close()
    del connection.settings_dict["OPTIONS"]["pool"]
