"""`manage.py up` as an operator starts it, on a folder of the test's own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")


class Run:
    """One start of the command on a data folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.data, self.ready_file = folder / "data", folder / "ready.json"
        self.log = folder / "up.log"
        clean = {
            k: v for k, v in os.environ.items() if k not in _NOT_INHERITED and not k.startswith("LOOPGUARD_")
        }
        self.environment = {**clean, "LOOPGUARD_BOOTSTRAP": "0"}

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "manage.py", "up", "--data", str(self.data), "--port", "0", *more]

    def start(self) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            up = subprocess.Popen(
                self.command("--ready-file", str(self.ready_file)),
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 120
        while not self.ready_file.exists():
            assert up.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return up, json.loads(self.ready_file.read_text())

    def pids(self) -> list[int]:
        note = json.loads((self.data / "running.json").read_text())
        return [process["pid"] for process in note["processes"]]
