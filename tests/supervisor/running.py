"""`manage.py up` as an operator starts it, on a folder of the test's own."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loopguard_site.supervisor import children
from loopguard_site.supervisor.data_folder import DataFolder

ROOT = Path(__file__).resolve().parents[2]
_NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")


class Run:
    """One start of the command on a data folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.data, self.ready_file = folder / "data", folder / "ready.json"
        self.log = folder / "up.log"
        self.root = ROOT
        self.umask = -1
        clean = {
            k: v for k, v in os.environ.items() if k not in _NOT_INHERITED and not k.startswith("LOOPGUARD_")
        }
        if way := os.environ.get("LOOPGUARD_UNDERTAKER"):  # the suite as it is on other systems than Linux
            clean["LOOPGUARD_UNDERTAKER"] = way
        # A second process of a kind would take a second to start; test_up.py runs the default.
        one = {"LOOPGUARD_WEB_PROCESSES": "1", "LOOPGUARD_WORKER_PROCESSES": "1"}
        self.environment = {**clean, "LOOPGUARD_BOOTSTRAP": "0", **one}
        self._started: list[subprocess.Popen[bytes]] = []

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "manage.py", "up", "--data", str(self.data), "--port", "0", *more]

    def launch(self, *more: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start the command, its output in `log`, and do not wait."""
        with self.log.open("wb") as log:
            up = subprocess.Popen(
                self.command(*more),
                cwd=self.root,
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                umask=self.umask,
            )
        self._started.append(up)
        return up

    def start(self, *more: str) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        """Start the command and wait until it is ready."""
        self.ready_file.unlink(missing_ok=True)
        up = self.launch("--ready-file", str(self.ready_file), *more)
        deadline = time.monotonic() + 120
        while not self.ready_file.exists():
            assert up.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return up, json.loads(self.ready_file.read_text())

    def refused(self, *more: str, **environment: str) -> str:
        """Start the command where it must not start; return the one line that it says."""
        done = subprocess.run(
            self.command(*more), cwd=self.root, env={**self.environment, **environment}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "Setting up the database" not in done.stdout
        return done.stderr

    def servers(self) -> dict[str, str]:
        """The environment that commands of the operator adopt: the servers' addresses among it."""
        return json.loads((self.data / "running.json").read_text())["environment"]

    def pids(self) -> list[int]:
        return json.loads((self.data / "running.json").read_text())["processes"]

    def kill(self) -> None:
        """End everything that still runs, at once."""
        for up in self._started:
            up.kill()
            up.wait(10)
        noted = self.pids() if (self.data / "running.json").exists() else []
        ((name, value),) = DataFolder(self.data).mark().items()
        for pid in {*noted, *children.with_environment(name, value)}:
            children.kill_group(pid)
            children.wait_until_gone(pid, 10)


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(file.parent.name)] = int(fields[1])
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


@contextlib.contextmanager
def running_in(prefix: str) -> Iterator[Run]:
    """A run on a temporary folder; at the end its processes are killed and the folder is removed."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o711)
    run = Run(folder)
    try:
        yield run
    finally:
        run.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def volume(megabytes: int, *options: str) -> Iterator[Path]:
    """A file system of its own in memory; the test is skipped where none may be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="lg-volume-"))
    command = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        ",".join((f"size={megabytes}m,mode=711", *options)),
        "none",
        str(folder),
    ]
    try:
        if subprocess.run(command, timeout=10, capture_output=True, check=False).returncode:
            pytest.skip("this account may not mount a volume")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], timeout=10, check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(folder: Path, name: str, leave_bytes: int = 0) -> Path:
    """Write a file until no more space is left than this."""
    file = folder / name
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as stream:
        while shutil.disk_usage(folder).free > leave_bytes:
            stream.write(bytes(1024**2))
    return file


def manage(run: Run, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *command], cwd=ROOT, timeout=60, check=False, capture_output=True, text=True,
        env={**run.environment, "LOOPGUARD_DATA": str(run.data)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def sign_in(ready: dict[str, str]) -> str:
    """Sign in as the operator; return the page that follows."""
    with httpx.Client(base_url=ready["url"], follow_redirects=True, timeout=60) as browser:
        browser.get("/sign-in")
        token = next(value for name, value in browser.cookies.items() if name.endswith("csrf"))
        form = {name: ready[name] for name in ("username", "password")}
        page = browser.post(
            "/sign-in", data={**form, "csrfmiddlewaretoken": token}, headers={"Referer": ready["url"]}
        )
        assert page.status_code == 200
        return page.text
