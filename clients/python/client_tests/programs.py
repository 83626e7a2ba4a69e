"""Programs that tests start: none outlives its time, and no wait for one lasts longer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def _catch_signals() -> None:
    """Undo what a parent in the background may have passed on: a shell cannot catch a signal that it got ignored."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def ended_after(
    seconds: float,
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with pipes; kill it, with everything that it started, after a time or when the block ends.

    That also ends every wait for its pipes.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=cwd, env=env, start_new_session=True, preexec_fn=_catch_signals,
    )  # fmt: skip

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    ends = threading.Timer(seconds, end)
    ends.daemon = True
    ends.start()
    try:
        yield process
    finally:
        ends.cancel()
        end()
        process.communicate(timeout=10)
