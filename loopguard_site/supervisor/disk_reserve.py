"""Disk space that is kept back, so that PostgreSQL can recover, and LoopGuard start, on a disk that is full.

Does not belong here: when events are rejected (`detection.services.storage.disk_space`).
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

    def release_if_needed(self) -> None:
        """Delete the file when the disk has less free space than it holds."""
        if self._free_bytes() < RESERVE_BYTES:
            self._file.unlink(missing_ok=True)

    def fill(self) -> None:
        """Create the file unless it exists or space is short."""
        if self._file.exists() or self._free_bytes() < 3 * RESERVE_BYTES:
            return
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

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free
