"""Disk space that is kept back, so that PostgreSQL can recover, and LoopGuard start, on a disk that is full.

Does not belong here: when events are rejected (`detection.services.maintenance.disk_space`).
"""

import contextlib
import os
import shutil
from pathlib import Path

SEGMENT_BYTES = 16 * 1024**2
"""A segment of PostgreSQL's write-ahead log. It is allocated whole, also during recovery."""
RESERVE_BYTES = 3 * SEGMENT_BYTES
"""Recovery needs a segment or two, its checkpoint and the first statements the rest."""


class DiskReserve:
    """A file that holds space on the disk of the database.

    Parameters
    ----------
    folder : Path
        A folder on that disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "reserve"

    def release_if_needed(self) -> bool:
        """Delete the file when the disk has less free space than it holds; tell whether it did."""
        if self._free_bytes() >= RESERVE_BYTES or not self._file.exists():
            return False
        self._file.unlink(missing_ok=True)
        return True

    def fill(self) -> bool:
        """Create the file unless it exists or space is short; tell whether it exists now."""
        if self._file.exists():
            return True
        if self._free_bytes() < 3 * RESERVE_BYTES:
            return False
        partial = self._file.with_name("reserve.partial")
        try:
            with partial.open("wb") as stream:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
                else:
                    stream.write(bytes(RESERVE_BYTES))
            partial.replace(self._file)
        except OSError:  # the disk has filled up, or has no such call
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            return False
        return True

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free
