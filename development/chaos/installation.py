"""A LoopGuard of its own, started by `manage.py up` on a small volume, whose processes can be found by name."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg

from development.chaos.runs import ASKING_BACKEND, SETTINGS
from loopguard_site.supervisor import addresses, children
from loopguard_site.supervisor.data_folder import DataFolder

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
END_SECONDS = 60.0
NOTE_SECONDS = 15.0
VOLUME_MEGABYTES = 1024
CLOCK_SOURCE = Path(__file__).with_name("clock.c")
KEPT_LOGS = ("up.log", "data/postgres/postgres.log", "data/valkey/valkey.log")
_PROGRAMS = {
    "web": "loopguard_site.rsgi",
    "live": "loopguard_site live",
    "worker": "loopguard_site worker",
    "beat": "loopguard_site beat",
    "valkey": "valkey-server",
    "postgres": "postgres -D",
}
_READ_ONLY = "default_transaction_read_only"
_NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "LOOPGUARD_", "TOOL_LOOP_")
_CLONE_NEWNS = 0x00020000
_CREATE_PROJECTS = """
import json, sys
from django.contrib.auth import get_user_model
from detection.models import KeyScope, Project
from detection.services.audit import SYSTEM, Actor
from detection.services.keys import create_key
from detection.services.projects.projects import create_project
wanted = json.loads(%r)
person = get_user_model().objects.get(username=wanted["username"])
found = {}
for name in wanted["names"]:
    project = create_project(Actor(person.get_username(), person.pk), name=name, slug=name)
    found[name] = create_key(project, "chaos", SYSTEM, scopes=list(KeyScope.values))[1]
# One secret for all: a word is stored as one of some ten thousand characters, so a word of an error may be taken for
# one of the call's arguments. Under another secret, these are other words.
Project.objects.update(digest_secret=b"a secret of all projects of a comparison")
print("KEYS " + json.dumps(found))
"""


class Installation:
    """Servers and processes in a temporary folder; use as a context manager.

    Attributes
    ----------
    folder
        Contains the data folder and the logs; removed at the end.
    has_volume, has_clock
        Whether the disk can be filled (a volume in memory could be mounted), and the clock be moved (a C compiler is
        there).
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="loopguard-chaos-"))
        self.folder.chmod(0o711)
        self.data = self.folder / "volume" / "data"
        self.log = self.folder / "up.log"
        self.has_volume = _mounted(self.data.parent)
        self._clock, self._clock_library = self.folder / "clock", self.folder / "clock.so"
        self.has_clock = _built(self._clock_library)
        self._ready = self.folder / "ready.json"
        self._cluster: Path | None = None
        self._up: subprocess.Popen[bytes] | None = None
        self._port = addresses.two_free_ports("127.0.0.1", 0)
        self.url, self.live_url = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{self._port + 1}"
        self.username = self.password = ""

    def __enter__(self) -> Installation:
        """Start everything and wait until it answers."""
        try:
            self.set_clock(0)
            self.start()
            self.wait_until_ready()
            ready = json.loads(self._ready.read_text(encoding="utf-8"))
            self.username, self.password = ready["username"], ready["password"]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything that runs, and remove the folder."""
        self.stop()

    def start(self) -> None:
        """Start the supervisor, again if it was killed; must be called from the main thread."""
        environment = {**_given(), "LOOPGUARD_KEY_REQUESTS_PER_SECOND": "0"}
        if self.has_clock:
            environment |= {"LD_PRELOAD": str(self._clock_library), "CHAOS_CLOCK": str(self._clock)}
        command = [sys.executable, "manage.py", "up", "--data", str(self.data), "--port", str(self._port)]
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._up = children.launch(
                [*command, "--ready-file", str(self._ready)], cwd=ROOT, env=environment, stdout=log
            )

    def wait_until_ready(self) -> None:
        """Wait for the ready file. Raises `RuntimeError` when the start fails or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            if self._up is None or self._up.poll() is not None:
                raise RuntimeError(
                    f"LoopGuard ended at its start: {self.log.read_text(errors='replace')[-2000:]}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"LoopGuard did not start within {START_SECONDS:g} s")
            time.sleep(0.05)

    def create_projects(self, names: list[str]) -> dict[str, str]:
        """Create projects whose admin is the operator; return their keys."""
        script = _CREATE_PROJECTS % json.dumps({"names": names, "username": self.username})
        environment = {**_given(), "LOOPGUARD_DATA": str(self.data)}
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "-v", "0", "-c", script],
            cwd=ROOT, env=environment, timeout=120, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"projects could not be created: {done.stderr[-2000:]}")
        line = next(line for line in done.stdout.splitlines() if line.startswith("KEYS "))
        keys: dict[str, str] = json.loads(line.removeprefix("KEYS "))
        for key in keys.values():
            with httpx.Client(
                base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=20
            ) as client:
                client.put("/overrides", json={"values": SETTINGS}).raise_for_status()
                client.put(
                    f"/overrides/{ASKING_BACKEND}", json={"values": {"mode": "ask"}}
                ).raise_for_status()
        return keys

    def sign_in(self) -> httpx.Cookies:
        """Sign in as the operator; return the cookies."""
        with httpx.Client(base_url=self.url, follow_redirects=True, timeout=20) as browser:
            browser.get("/sign-in").raise_for_status()
            token = next(value for name, value in browser.cookies.items() if name.endswith("csrf"))
            form = {"username": self.username, "password": self.password, "csrfmiddlewaretoken": token}
            browser.post("/sign-in", data=form, headers={"Referer": self.url}).raise_for_status()
            return browser.cookies

    @contextlib.contextmanager
    def database(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Connect to the database as its owner."""
        address = self._owner_address()
        with psycopg.connect(address, autocommit=True, connect_timeout=5) as connection:
            connection.execute("SET statement_timeout = '20s'")
            yield connection

    def _owner_address(self) -> str:
        """Return what commands of the operator use; a full disk delays the file."""
        deadline = time.monotonic() + NOTE_SECONDS
        while not (self.data / "running.json").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        note = json.loads((self.data / "running.json").read_text(encoding="utf-8"))
        return str(note["environment"]["LOOPGUARD_OWNER_DATABASE_URL"])

    def pids(self, name: str) -> list[int]:
        """Return the processes of a name of the schedule; ``postgres`` and ``web`` with all that they started."""
        if name == "supervisor":
            return [self._up.pid] if self._up is not None and self._up.poll() is None else []
        program, _, part = name.partition(" ")
        try:
            noted = json.loads((self.data / "running.json").read_text(encoding="utf-8"))["processes"]
        except (OSError, ValueError):
            return []
        parents = [pid for pid in noted if _PROGRAMS[program] in _command(pid)]
        started = [child for pid in parents for child in _children(pid)]
        if name == "web worker":
            return [pid for pid in started if "resource_tracker" not in _command(pid)]
        if name == "postgres backend":
            return [pid for pid in started if "loopguard_app" in _command(pid)]
        return parents if part or program != "postgres" else [*parents, *started]

    def set_read_only(self, *, is_read_only: bool) -> bool:
        """Let PostgreSQL reject all writes, as after a failover, or accept them again; False if it has never run.

        The setting is written into its file, because it may be frozen or about to start.
        """
        servers = self.pids("postgres")[:1]
        for pid in servers:
            words = _command(pid).split()
            self._cluster = Path(words[words.index("-D") + 1])
        if self._cluster is None:
            return False
        file = self._cluster / "postgresql.auto.conf"
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if _READ_ONLY not in line]
        lines += [f"{_READ_ONLY} = on"] if is_read_only else []
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for pid in servers:
            children.send(pid, signal.SIGHUP)
        return True

    def set_clock(self, seconds: int) -> None:
        """Move the clock of all processes by this much from the true time, at once."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))
        self._clock.chmod(0o644)

    def keep_logs(self, target: Path) -> None:
        """Copy the logs of the installation into a folder that stays."""
        target.mkdir(parents=True, exist_ok=True)
        for name in KEPT_LOGS:
            file = self.folder / name.replace("data/", "volume/data/")
            with contextlib.suppress(OSError):
                shutil.copy(file, target / file.name)

    def stop(self) -> None:
        """End everything, frozen processes too, and remove the folder."""
        if self._up is not None:
            for pid in self._own():
                children.send(pid, signal.SIGCONT)
            children.end(self._up, signal.SIGINT, timeout_seconds=END_SECONDS)
            for pid in self._own():
                children.kill_group(pid)
            self._up = None
        if self.has_volume:
            subprocess.run(["umount", "-l", self.data.parent], timeout=10, check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _own(self) -> list[int]:
        ((name, value),) = DataFolder(self.data).mark().items()
        up = [self._up.pid] if self._up is not None and self._up.poll() is None else []
        return [*up, *children.with_environment(name, value), *self.pids("postgres")]


def _given() -> dict[str, str]:
    """Return the environment without the settings of another installation."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    return {**given, "LOOPGUARD_BOOTSTRAP": "0"}


def _mounted(folder: Path) -> bool:
    """Mount a file system in memory that only this process and its children see, so that it ends with them."""
    folder.mkdir()
    folder.chmod(0o711)
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        return False
    private = ["mount", "--make-rprivate", "/"]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MEGABYTES}m,mode=711", "none", str(folder)]
    return all(
        subprocess.run(command, timeout=10, check=False, capture_output=True).returncode == 0
        for command in (private, mount)
    )


def _built(library: Path) -> bool:
    """Build the library that moves the clock; return whether there is a compiler."""
    compiler = shutil.which("cc")
    command = [compiler or "", "-O2", "-shared", "-fPIC", "-o", str(library), str(CLOCK_SOURCE), "-ldl"]
    return (
        bool(compiler)
        and subprocess.run(command, timeout=60, check=False, capture_output=True).returncode == 0
    )


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in file.read_text(encoding="ascii").split()]
    return found
