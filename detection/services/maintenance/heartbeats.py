"""Heartbeats of the installation's parts, so that a process that runs but does nothing does not look healthy."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from typing import Literal

from django.db import connection
from django.utils import timezone

from detection.models import PartHeartbeat

Part = Literal["worker", "sweeper", "beat", "housekeeping"]
STEP_SECONDS = 5.0
"""Minimum time between two heartbeats of a part in one process."""


class Heartbeats:
    """The heartbeats of this process."""

    def __init__(self) -> None:
        self._noted_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, part: Part, **did: int) -> None:
        """Note that a part has just finished its work.

        Parameters
        ----------
        part
            The part.
        did
            Numbers of what it did; heartbeats within one step are not added up.
        """
        now = time.monotonic()
        with self._lock:
            if now - self._noted_at.get(part, -STEP_SECONDS) < STEP_SECONDS and not any(did.values()):
                return
            self._noted_at[part] = now
        beat = PartHeartbeat(part=part, at=timezone.now(), by=_name_of_process())
        PartHeartbeat.objects.bulk_create(
            [beat], update_conflicts=True, unique_fields=["part"], update_fields=["at", "by"]
        )

    def clear(self) -> None:
        """Forget when heartbeats were noted; the next one of each part is noted at once."""
        self._noted_at.clear()


heartbeats = Heartbeats()

_BEAT_ID = secrets.token_hex(16)
_KEPT = "1 hour"
_NOTE_BEAT = """
INSERT INTO detection_beatprocess (id, by, started_at, at) VALUES (%s, %s, now(), now())
ON CONFLICT (id) DO UPDATE SET at = now()
"""


def note_beat() -> None:
    """Note that this process of beat runs, by the clock of the database, and forget those that have ended."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTE_BEAT, [_BEAT_ID, _name_of_process()])
        cursor.execute("DELETE FROM detection_beatprocess WHERE at < now() - %s::interval", [_KEPT])


def _name_of_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
