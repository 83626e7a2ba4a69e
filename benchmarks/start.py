"""The first start: from the command to answering pages, on an empty data folder, with the packages installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Figure
from benchmarks.stack import ROOT

LONGEST_SECONDS = 120.0


def run() -> list[Figure]:
    """Start LoopGuard once and stop it."""
    folder = Path(tempfile.mkdtemp(prefix="loopguard-benchmarks-"))
    folder.chmod(0o711)
    ready = folder / "ready.json"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")
    }
    command = [
        sys.executable,
        "manage.py",
        "up",
        "--data",
        str(folder / "data"),
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
        seconds = time.perf_counter() - before
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
    return [Figure("first start of the embedded default, packages there", seconds, "s", 60, 20)]
