"""Whether the guard is in use, in any process of `web` on this port; bulk traffic is held back while it is.

The processes have no memory in common; they touch a file, at most four times a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

GUARDED_SECONDS: Final = 1.0
"""How long a guard request counts as use."""
_PERIOD_SECONDS: Final = 0.25


class GuardUse:
    """Remembers the last guard request; safe to use from several threads.

    Parameters
    ----------
    folder
        Folder that the processes share; None for a single process.
    clock
        Gives the time in seconds.
    """

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = folder / "guard-used" if folder else None
        self._clock = clock
        self._until = self._write_at = self._read_at = 0.0

    def note(self) -> None:
        """Note a guard request of this process."""
        now = self._clock()
        self._until = now + GUARDED_SECONDS
        if self._file is not None and now >= self._write_at:
            self._write_at = now + _PERIOD_SECONDS
            with contextlib.suppress(OSError):  # a full disk changes nothing for this process
                self._file.touch()

    def seconds_left(self) -> float:
        """Return how long bulk traffic is still held back, as far as is known; 0 if it is not."""
        now = self._clock()
        if self._file is not None and now >= max(self._until, self._read_at):
            self._read_at = now + _PERIOD_SECONDS
            with contextlib.suppress(OSError):
                self._until = max(
                    self._until, now + GUARDED_SECONDS - (time.time() - self._file.stat().st_mtime)
                )
        return max(0.0, self._until - now)
