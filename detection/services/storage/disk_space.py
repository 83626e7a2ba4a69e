"""Free space on the disk of an embedded database.

The disk of a database elsewhere is not known; that database reports by itself when its disk is full.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Final

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction

log = structlog.get_logger(__name__)
CACHE_SECONDS: Final = 0.25
LEAST_FREE_BYTES: Final = 4 * 16 * 1024**2
"""The log of PostgreSQL grows by segments of 16 MB. With less, it may stop at any write, also one of retention."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Size and free space of a disk in bytes; below `min_free`, no events are accepted."""

    total: int
    free: int
    min_free: float

    @property
    def is_full(self) -> bool:
        """Whether events must be rejected."""
        return self.free < self.min_free


class DiskMonitor:
    """Reads the disk usage of the database folder and keeps it for `CACHE_SECONDS`."""

    def __init__(self) -> None:
        self._expires_at, self._folder = 0.0, ""
        self._usage: DiskUsage | None = None

    def usage(self) -> DiskUsage | None:
        """Return the disk usage; None if the disk is not known. Costs a system call every `CACHE_SECONDS`."""
        folder, now = settings.DATABASE_FOLDER, time.monotonic()
        if now < self._expires_at and folder == self._folder:
            return self._usage
        usage, was_full = _read(folder), self._usage is not None and self._usage.is_full
        if usage is not None and usage.is_full and not was_full:
            log.error("storage_full", free_bytes=usage.free)
        elif usage is not None and was_full and not usage.is_full:
            log.info("storage_available", free_bytes=usage.free)
        self._expires_at, self._folder, self._usage = now + CACHE_SECONDS, folder, usage
        return usage

    def is_full(self) -> bool:
        """Return whether the disk is known to be nearly full."""
        usage = self.usage()
        return usage is not None and usage.is_full

    def expire(self) -> None:
        """Read the disk again at the next call."""
        self._expires_at = 0.0


disk_monitor = DiskMonitor()


def recycle_log_if_nearly_full() -> None:
    """Let PostgreSQL recycle its log if the disk is nearly full, so that the next deletion has space.

    A deletion writes its log faster than the checkpoints of PostgreSQL's own schedule release it.
    """
    disk_monitor.expire()
    usage = disk_monitor.usage()
    if usage is None or usage.free >= max(usage.min_free, 2 * LEAST_FREE_BYTES):
        return
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("CHECKPOINT")
    except DatabaseError as error:  # lacks the right on a server of another owner, or the disk is slow
        log.warning("checkpoint_failed", error=str(error)[:200])


def _read(folder: str) -> DiskUsage | None:
    if not folder:
        return None
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        log.warning("storage_unknown", folder=folder, error=str(error)[:200])
        return None
    # Space that is reserved for root is not available to the database.
    wanted = min(settings.MIN_FREE_SHARE * usage.total, settings.MIN_FREE_BYTES)
    return DiskUsage(usage.total, usage.free, max(wanted, LEAST_FREE_BYTES) if wanted else 0)
