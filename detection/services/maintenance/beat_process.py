"""The processes of beat, and which of them sends the tasks: by the clock of the database, and without a lock.

A lock would stay with a process that is frozen, or with the connection of a machine that has vanished.
"""

from __future__ import annotations

import secrets
from typing import Final

from django.db import connection

from detection.services.maintenance.heartbeats import name_of_process

_ID: Final = secrets.token_hex(16)
_KEPT: Final = "1 hour"
_NOTE: Final = """
INSERT INTO detection_beatprocess (id, by, started_at, at) VALUES (%s, %s, now(), now())
ON CONFLICT (id) DO UPDATE SET at = now()
"""
_FRESH: Final = "20 seconds"
"""Ten times the period in which a process of beat notes that it runs."""
_SETTLED: Final = "5 seconds"
"""After this time, each of the others has shown itself since this process began, if it runs."""
_RUNNING: Final = """
WITH fresh AS (SELECT id, by, at, started_at FROM detection_beatprocess WHERE at > now() - %s::interval)
SELECT id, by, started_at < now() - %s::interval FROM fresh
WHERE at >= (SELECT max(started_at) FROM fresh) ORDER BY started_at, id
"""
"""Those that run, the one that leads first. One that was replaced has not shown itself since the other one began."""


def leads() -> bool:
    """Note that this process runs, and return whether it is the one that sends tasks; three statements."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, [_ID, name_of_process()])
        cursor.execute("DELETE FROM detection_beatprocess WHERE at < now() - %s::interval", [_KEPT])
        cursor.execute(_RUNNING, [_FRESH, _SETTLED])
        first = cursor.fetchone()
        return first is not None and first[0] == _ID and bool(first[2])


def running() -> tuple[str, ...]:
    """Return host and number of each process of beat that runs, the one that sends tasks first."""
    with connection.cursor() as cursor:
        cursor.execute(_RUNNING, [_FRESH, _SETTLED])
        return tuple(by for _, by, _ in cursor.fetchall())
