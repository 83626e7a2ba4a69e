"""LoopGuard's own processes on the test database, with a broker that may be anything."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from django.db import connection

from loopguard_site.supervisor.addresses import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 40.0


def test_database_url() -> str:
    """The address of the database that this test uses."""
    at = connection.settings_dict
    query = f"host={quote(str(at['HOST']), safe='')}"
    if at.get("PORT"):
        query += f"&port={at['PORT']}"
    user = quote(str(at["USER"]), safe="") + (
        f":{quote(str(at['PASSWORD']), safe='')}" if at.get("PASSWORD") else ""
    )
    return f"postgresql://{user}@/{at['NAME']}?{query}"


def wait_until(check: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.1)
    return False


class Installation:
    """Web and worker processes; end it with `stop`.

    `environment` is what they get besides, or instead; another `root` has their code.
    """

    root = ROOT

    def __init__(self, redis_url: str, folder: Path, **environment: str) -> None:
        self._environment = {
            **os.environ,
            "DATABASE_URL": test_database_url(),
            "REDIS_URL": redis_url,
            "LOOPGUARD_MODE": "test",
            "CELERY_SKIP_CHECKS": "1",
            **environment,
        }
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.url = self.live_url = ""

    @property
    def database_url(self) -> str:
        """The address of the database that its processes use."""
        return self._environment["DATABASE_URL"]

    def _launch(self, name: str, *command: str, max_files: int = 0) -> subprocess.Popen[bytes]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limits = (soft, max_files or hard)
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits), limits[1])),
            )
        self._running.append(process)
        return process

    def start_web(self, processes: int = 1) -> subprocess.Popen[bytes]:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        server = [
            "granian",
            "--interface",
            "rsgi",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            str(processes),
            "--http1-header-read-timeout",
            "10000",
            "--http1-buffer-size",
            "65536",
        ]
        process = self._launch("web", *server, "--log-level", "warning", "loopguard_site.rsgi:application")
        assert wait_until(self._answers, START_SECONDS), self.logs()
        return process

    def start_live(self, max_files: int = 0) -> subprocess.Popen[bytes]:
        port = free_port()
        self.live_url = self._environment["LOOPGUARD_LIVE_URL"] = f"http://127.0.0.1:{port}"
        process = self._launch("live", "loopguard_site", "live", "--port", str(port), max_files=max_files)
        assert wait_until(lambda: self._answers(self.live_url), START_SECONDS), self.logs()
        return process

    def _answers(self, url: str = "") -> bool:
        try:
            return httpx.get(f"{url or self.url}/readyz", timeout=2, verify=PLAIN).status_code == 200
        except httpx.TransportError:
            return False

    def prepare(self) -> str:
        """Set up the database or migrate it; return the first key of a new one."""
        result = self._folder / "prepared.json"
        done = subprocess.run(
            [sys.executable, "manage.py", "prepare", "--result", str(result)],
            cwd=self.root, env={**self._environment, "LOOPGUARD_BOOTSTRAP": "0", "LOOPGUARD_DATA": str(self._folder)},
            check=False, timeout=180, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return str(json.loads(result.read_text()).get("api_key", ""))

    def start_worker(self) -> subprocess.Popen[bytes]:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO"]
        return self._launch(
            "worker", "celery", "-A", "loopguard_site", "worker", "-P", "threads", "-c", "2", *quiet
        )

    def start_beat(self) -> subprocess.Popen[bytes]:
        return self._launch("beat", "celery", "-A", "loopguard_site", "beat", "--pidfile=", "-l", "INFO")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def stop(self, but: int = 0) -> None:
        """Kill all processes, or all but those that were started first."""
        while len(self._running) > but:
            self.kill(self._running.pop())

    def logs(self) -> str:
        return "\n".join(f"{file.name}:\n{file.read_text()[-3000:]}" for file in self._folder.glob("*.log"))


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """A server that accepts and never answers; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    listener.settimeout(0.2)
    held: list[socket.socket] = []
    ended = threading.Event()

    def accept() -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                held.append(listener.accept()[0])

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        thread.join(10)
        for connected in [*held, listener]:
            connected.close()


def looping_events(session: str, calls: int = 6, start: int = 0) -> list[dict[str, Any]]:
    """A session that makes the same call with the same result over and over."""
    events: list[dict[str, Any]] = []
    for number in range(start, start + calls):
        call = {"type": "call", "tool": "search_web", "arguments": {"q": "the same thing"}}
        result = {"type": "result", "content": "0 hits"}
        events += [{"session": session, "call_id": f"c{number}", **part} for part in (call, result)]
    return events
