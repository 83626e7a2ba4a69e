"""Advisory locks of the database, for work that only one process does at a time. All lock numbers are here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, unique
from typing import Final

from django.db import DEFAULT_DB_ALIAS, connection, connections


@unique
class AdvisoryLock(IntEnum):
    """Work that one process does at a time; each number is used once in the database."""

    FIRST_START = 0x4C47_0001
    SWEEP = 0x4C47_0002
    HOUSEKEEPING = 0x4C47_0003
    ALERT_ROUTING = 0x4C47_0004
    COUNTING = 0x4C47_0005
    DATABASE_RIGHTS = 0x4C47_0006
    JUDGE = 0x4C47_0007
    SWEEP_OUTSIDE_WORKERS = 0x4C47_0008
    IMPORT = 0x4C47_0009
    WHAT_IF = 0x4C47_000A
    ERASURE = 0x4C47_000B
    INDEXING = 0x4C47_000C
    QUICK_REPLAY = 0x4C47_000D
    RECALCULATION = 0x4C47_000E


_KEY: Final = "%s # hashtext(coalesce(current_schema(), ''))"
"""Several installations may share a database, each with a schema of its own."""


def lock_until_commit(lock: AdvisoryLock, using: str = DEFAULT_DB_ALIAS) -> None:
    """Wait for a lock and hold it until the transaction ends."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT pg_advisory_xact_lock({_KEY})", [lock.value])


def try_lock_until_commit(lock: AdvisoryLock) -> bool:
    """Take a lock until the transaction ends; False when another process holds it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_xact_lock({_KEY})", [lock.value])
        return bool(cursor.fetchone()[0])


@contextmanager
def try_lock(lock: AdvisoryLock, row_id: int | None = None) -> Iterator[bool]:
    """Hold a lock for the block, across transactions.

    Parameters
    ----------
    row_id
        Hold it for one row of a table only.

    Yields
    ------
    bool
        False when another process holds it.
    """
    key = [lock.value] if row_id is None else [lock.value, row_id % 2**31]
    places = _KEY if row_id is None else f"{_KEY}, %s"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_lock({places})", key)
        if not cursor.fetchone()[0]:
            yield False
            return
    try:
        yield True
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT pg_advisory_unlock({places})", key)
