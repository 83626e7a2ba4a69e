"""How much room the disk of the database has, where that disk is known: one look every few seconds, none in between.

Known is the folder of an embedded database. A database elsewhere says itself when its disk is full; what that means for an
answer is said at the doors.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Final

import structlog
from django.conf import settings

log = structlog.get_logger(__name__)
LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Room:
    """What a disk has, in bytes; with less than `least` free, no more events are taken."""

    total: int
    free: int
    least: float

    @property
    def is_too_little(self) -> bool:
        """Whether events must be refused."""
        return self.free < self.least


_looked: tuple[float, str, Room | None] = (0.0, "", None)


def room() -> Room | None:
    """Return what the database's disk has, as of at most `LOOK_SECONDS` ago; None where it is not known.

    Costs a look at the clock, and every few seconds one approval to the file system.
    """
    global _looked
    folder, now = settings.DATABASE_FOLDER, time.monotonic()
    due, known_folder, known = _looked
    if now < due and folder == known_folder:
        return known
    found = _look(folder)
    if found is not None and found.is_too_little != (known is not None and known.is_too_little):
        tell = log.error if found.is_too_little else log.info
        tell("storage_full" if found.is_too_little else "storage_has_room", free_bytes=found.free)
    _looked = now + LOOK_SECONDS, folder, found
    return found


def is_full() -> bool:
    """Tell whether the disk is known to have too little room for more events."""
    known = room()
    return known is not None and known.is_too_little


def _look(folder: str) -> Room | None:
    if not folder:
        return None
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        log.warning("storage_unknown", folder=folder, error=str(error)[:200])
        return None
    # What the system keeps for its administrator is of no use to the database.
    return Room(usage.total, usage.free, min(settings.MIN_FREE_SHARE * usage.total, settings.MIN_FREE_BYTES))
