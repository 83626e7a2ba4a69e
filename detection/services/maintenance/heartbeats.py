"""Heartbeats of the installation's parts, so that a process that runs but does nothing does not look healthy."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Literal

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
        beat = PartHeartbeat(part=part, at=timezone.now(), by=name_of_process())
        PartHeartbeat.objects.bulk_create(
            [beat], update_conflicts=True, unique_fields=["part"], update_fields=["at", "by"]
        )

    def clear(self) -> None:
        """Forget when heartbeats were noted; the next one of each part is noted at once."""
        self._noted_at.clear()


heartbeats = Heartbeats()


def name_of_process() -> str:
    """Return host and number of this process."""
    return f"{socket.gethostname()}/{os.getpid()}"
