"""The time of scenarios: that of a test clock, which is set, or that of the machine, which is waited for."""

from __future__ import annotations

import heapq
import math
import secrets
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

WORKERS = 4
"""Scenarios that are played at a time."""


class Clock(Protocol):
    """A clock that scenarios are played by; their times are seconds after the start."""

    longest_seconds: float

    def now(self) -> float:
        """Return how many seconds after the start it is."""

    def go_to(self, seconds: float) -> None:
        """Let it be so many seconds after the start."""


class TestClock:
    """The file that an installation reads its time from; see `detection.clock`."""

    longest_seconds = math.inf

    def __init__(self, file: Path) -> None:
        self._file, self._now = file, 0.0
        # Any second of the next day: an installation that reads another clock has another time.
        self.start = float(math.ceil(time.time()) + secrets.randbelow(86_400))
        self.go_to(0)

    def now(self) -> float:
        """Return the time that it was set to."""
        return self._now

    def go_to(self, seconds: float) -> None:
        """Set the clock; a process reads the old time or the new one, never a part."""
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(repr(self.start + seconds), encoding="ascii")
        new.replace(self._file)
        self._now = seconds


class RealClock:
    """The clock of the machine.

    Parameters
    ----------
    longest_seconds
        The span of the longest scenario that is worth the time.
    """

    def __init__(self, longest_seconds: float) -> None:
        self.longest_seconds = longest_seconds
        self._start = time.monotonic()

    def now(self) -> float:
        """Return the time that has passed."""
        return time.monotonic() - self._start

    def go_to(self, seconds: float) -> None:
        """Wait."""
        time.sleep(max(0.0, self._start + seconds - time.monotonic()))


def play_together(plays: Iterable[Iterator[float]], clock: Clock) -> None:
    """Run scenarios beside each other, all by one clock.

    Parameters
    ----------
    plays
        Each yields the time of its next step before it takes it.
    """
    running = dict(enumerate(plays))
    waiting = [(0.0, number) for number in running]
    with ThreadPoolExecutor(WORKERS) as pool:
        while waiting:
            if waiting[0][0] > clock.now():
                clock.go_to(waiting[0][0])
            now = clock.now()
            due = []
            while waiting and waiting[0][0] <= now:
                due.append(heapq.heappop(waiting)[1])
            for number, next_at in zip(due, pool.map(lambda one: next(running[one], None), due), strict=True):
                if next_at is not None:
                    heapq.heappush(waiting, (max(next_at, now), number))
