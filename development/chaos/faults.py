"""Does what the schedule says to an installation."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from development.chaos.installation import Installation
from development.chaos.schedule import Fault, Strike
from loopguard_site.supervisor import children

FREE_BYTES = {"nearly full": 40 * 1024**2, "full": 0}
"""What is left on the volume; below 64 MB, events and guard calls are rejected."""
_CHUNK_BYTES = 1024**2


class Injector:
    """Strikes an installation; `undo` ends whatever lasts.

    Parameters
    ----------
    rng
        Picks one of several processes of a name. Not of the schedule: which of them exist is not known beforehand.
    """

    def __init__(self, installation: Installation, rng: random.Random) -> None:
        self._installation = installation
        self._rng = rng
        self._frozen: list[int] = []

    def strike(self, strike: Strike) -> list[str]:
        """Do the faults of a strike, which takes as long as they last; return those that hit nothing.

        Must be called from the main thread, as a killed supervisor is started again.
        """
        missed: list[str] = []
        plan: list[tuple[float, Callable[[], object]]] = []
        for fault in strike.faults:
            begin, end = self._actions(fault, missed)
            plan.append((fault.after_seconds, begin))
            if end is not None:
                plan.append((fault.after_seconds + fault.seconds, end))
        began = time.monotonic()
        for at, action in sorted(plan, key=lambda step: step[0]):
            time.sleep(max(0.0, began + at - time.monotonic()))
            action()
        return missed

    def undo(self) -> None:
        """Continue frozen processes, let the database take writes, free the disk, set the clock right."""
        self._continue()
        self._installation.set_read_only(is_read_only=False)
        self._filler.unlink(missing_ok=True)
        self._installation.set_clock(0)

    @property
    def _filler(self) -> Path:
        return self._installation.data.parent / "filler"

    def _actions(
        self, fault: Fault, missed: list[str]
    ) -> tuple[Callable[[], object], Callable[[], object] | None]:
        """Return what begins a fault and what ends it."""
        if fault.action == "disk":
            return lambda: self._fill(FREE_BYTES[fault.target]), lambda: self._filler.unlink(missing_ok=True)
        if fault.action == "clock":
            move = self._installation.set_clock
            return lambda: move(fault.jump_seconds), lambda: move(0)
        if fault.action == "read-only":
            return lambda: self._make_read_only(fault, missed), self._make_writable
        if fault.action == "freeze":
            return lambda: self._freeze(fault, missed), self._continue
        return lambda: self._kill(fault, missed), None

    def _kill(self, fault: Fault, missed: list[str]) -> None:
        pids = self._installation.pids(fault.target)
        if not pids:
            missed.append(fault.kind)
        elif fault.target.endswith(("worker", "backend")):
            children.send(self._rng.choice(pids), signal.SIGKILL)
        else:
            children.send(pids[0], signal.SIGKILL)
        if fault.target == "supervisor":
            self._installation.start()

    def _make_read_only(self, fault: Fault, missed: list[str]) -> None:
        if not self._installation.set_read_only(is_read_only=True):
            missed.append(fault.kind)

    def _make_writable(self) -> None:
        self._installation.set_read_only(is_read_only=False)

    def _freeze(self, fault: Fault, missed: list[str]) -> None:
        pids = self._installation.pids(fault.target)
        if fault.target == "web worker" and pids:
            pids = [self._rng.choice(pids)]
        if not pids:
            missed.append(fault.kind)
        for pid in pids:
            self._frozen.append(pid)
            children.send(pid, signal.SIGSTOP)

    def _continue(self) -> None:
        for pid in self._frozen:
            children.send(pid, signal.SIGCONT)
        self._frozen.clear()

    def _fill(self, leave_bytes: int) -> None:
        """Write a file beside the data until no more than this is left on the volume."""
        place = os.statvfs(self._installation.data.parent)
        free = place.f_bavail * place.f_frsize
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as stream:
            os.posix_fallocate(stream.fileno(), 0, max(1, free - leave_bytes))
            if leave_bytes == 0:
                while True:  # what was freed meanwhile
                    stream.seek(0, os.SEEK_END)
                    stream.write(bytes(_CHUNK_BYTES))
