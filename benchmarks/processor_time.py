"""The processor time of processes, as Linux counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of all their children, those that have ended included."""
    return sum(_seconds_of(pid) for pid in pids)


def _seconds_of(pid: int) -> float:
    try:
        # The name, in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(value) for value in fields[11:15]) / _TICKS + processor_seconds(map(int, children))
