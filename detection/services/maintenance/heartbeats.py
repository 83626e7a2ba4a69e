"""Heartbeats of the parts: a process that runs but does nothing must not look healthy."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Literal

from django.core.cache import cache

Part = Literal["worker", "sweeper", "beat", "housekeeping"]
KEPT_SECONDS = 7 * 24 * 3600
STEP_SECONDS = 5.0
"""Minimum time between two heartbeats of a part in one process."""

_noted_at: dict[str, float] = {}
_lock = threading.Lock()


def note(part: Part, **did: int) -> None:
    """Note that `part` has just finished something.

    Parameters
    ----------
    part
        Which one.
    did
        What it did, in numbers; what calls within one step did is not added up.
    """
    now = time.monotonic()
    with _lock:
        if now - _noted_at.get(part, -STEP_SECONDS) < STEP_SECONDS and not any(did.values()):
            return
        _noted_at[part] = now
    beat = {"at": time.time(), "by": f"{socket.gethostname()}/{os.getpid()}", **did}
    cache.set(f"heartbeat:{part}", beat, KEPT_SECONDS)
