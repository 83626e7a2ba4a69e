"""The first start: from the command to the first page, on an empty data folder, with the packages installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Figure
from benchmarks.stack import ROOT

LONGEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Started:
    """A LoopGuard that `manage.py up` runs on a folder of its own.

    Attributes
    ----------
    ready
        What its ready file contains: addresses and key.
    seconds
        From the command until it was ready.
    """

    data: Path
    ready: dict[str, str]
    seconds: float


@contextlib.contextmanager
def started() -> Iterator[Started]:
    """Start LoopGuard, and stop it with everything it left."""
    folder = Path(tempfile.mkdtemp(prefix="loopguard-benchmarks-"))
    folder.chmod(0o711)
    data, ready = folder / "data", folder / "ready.json"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")
    }
    command = [
        sys.executable,
        "manage.py",
        "up",
        "--data",
        str(data),
        "--port",
        "8790",
        "--ready-file",
        str(ready),
    ]
    before = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment, "LOOPGUARD_BOOTSTRAP": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not ready.exists():
            if process.poll() is not None or time.perf_counter() - before > LONGEST_SECONDS:
                raise RuntimeError("LoopGuard did not start")
            time.sleep(0.05)
        yield Started(data, json.loads(ready.read_text()), time.perf_counter() - before)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def run() -> list[Figure]:
    """Start LoopGuard once and stop it."""
    with started() as loopguard:
        return [Figure("first start of the embedded default, packages there", loopguard.seconds, "s", 60, 20)]
