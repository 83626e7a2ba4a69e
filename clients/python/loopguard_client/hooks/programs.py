"""Programs that are asked something through pipes, within a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Final

PROGRAM_SECONDS: Final = 30.0
"""A judgement: a coding agent that starts takes up to ten."""


@contextlib.contextmanager
def program_with_pipes(command: Sequence[str], folder: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program with pipes, and end it with everything that it started when the block or its time is over."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        start_new_session=True,
    )

    def end() -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    # The end of the pipes ends every wait for them.
    ends = threading.Timer(PROGRAM_SECONDS, end)
    ends.daemon = True
    ends.start()
    try:
        yield process
    finally:
        ends.cancel()
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5.0)
