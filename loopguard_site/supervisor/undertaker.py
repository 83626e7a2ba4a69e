"""Ends the children of a process that died without ending them, where the kernel does not.

A small process of its own reads from a pipe which children there are. The pipe ends when the process that writes to it
dies, however it dies.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

_PATIENCE_SECONDS = 60.0
"""For all children together, until they are killed; PostgreSQL writes what it has in memory."""


class Undertaker:
    """Knows the children of this process, from outside; starts with the first child."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def note(self, pid: int, death_signal: signal.Signals) -> None:
        """Have a child signalled when this process dies."""
        if self._owner != os.getpid() or self._process is None or self._process.poll() is not None:
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._say(f"{pid} {int(death_signal)}")

    def forget(self, pid: int) -> None:
        """Leave a child alone: it has ended, and its number may soon be that of another process."""
        if self._owner == os.getpid():
            self._say(f"{pid} 0")

    def _say(self, line: str) -> None:
        pipe = self._process.stdin if self._process is not None else None
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.write(f"{line}\n".encode())
                pipe.flush()


def watch(lines: Iterable[str]) -> None:
    """Read which children there are, until there is nobody left to say so; then end them."""
    children: dict[int, int] = {}
    for line in lines:
        pid, number = map(int, line.split())
        if number:
            children[pid] = number
        else:
            children.pop(pid, None)
    for pid, number in children.items():
        _send(pid, number)
        _send(pid, signal.SIGCONT)  # a frozen one meets the signal only then
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while children and time.monotonic() < deadline:
        time.sleep(0.1)
        children = {pid: number for pid, number in children.items() if _send(pid, 0)}
    for pid in children:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> bool:
    """Signal a process; tell whether it is there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    watch(sys.stdin)
