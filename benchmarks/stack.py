"""LoopGuard with embedded servers of its own in a temporary folder, ended with all its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psycopg

from benchmarks.processor_time import processor_seconds
from loopguard_site.env import web_processes, worker_processes
from loopguard_site.supervisor import children
from loopguard_site.supervisor.addresses import free_port
from loopguard_site.supervisor.postgres import EmbeddedPostgres
from loopguard_site.supervisor.valkey import EmbeddedValkey

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 60.0
_CREATE_KEY = """
import sys, django
django.setup()
from detection.models import Project
from detection.services import audit, keys
project = Project.objects.create(slug=sys.argv[1], name=sys.argv[1])
print(keys.create_key(project, "benchmark", audit.SYSTEM)[1])
"""
_CREATE = (
    "CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, body "
    "text NOT NULL, at timestamptz NOT NULL DEFAULT now())"
)


class Stack:
    """Servers, web, live and worker; use as a context manager.

    Parameters
    ----------
    settings
        Environment variables besides those that every stack needs.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._folder = Path(tempfile.mkdtemp(prefix="loopguard-benchmarks-"))
        self._folder.chmod(0o711)
        self._postgres = EmbeddedPostgres(self._folder / "postgres")
        self._valkey = EmbeddedValkey(self._folder / "valkey")
        self._children: list[subprocess.Popen[bytes]] = []
        self._web_children: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._webs: list[str] = []
        port, live = free_port(), free_port()
        self.url, self.live_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{live}"
        self._ports = (port, live)
        self.shown: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Start everything and wait until it answers."""
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        self._stop()

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an API request."""
        return {"Authorization": f"Bearer {self.shown['api_key']}", "Content-Type": "application/json"}

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Open a connection to the database."""
        return psycopg.connect(self.environment["DATABASE_URL"], autocommit=True)

    @property
    def live_pid(self) -> int:
        """The process of `live`."""
        return self._children[1].pid

    def postgres_pids(self) -> list[int]:
        """Return the processes of the database server."""
        server = self._postgres.child
        if server is None:
            return []
        children_of = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        return [server.pid, *(int(pid) for pid in children_of)]

    def create_key(self, project: str) -> str:
        """Create a project with a key; return the token."""
        command = [sys.executable, "-c", _CREATE_KEY, project]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def session_cookie(self) -> str:
        """Sign in as the operator; return the cookie header of the browser."""
        with httpx.Client(base_url=self.url, follow_redirects=True) as browser:
            browser.get("/sign-in")
            token = next(value for name, value in browser.cookies.items() if name.endswith("csrf"))
            form = {
                "username": self.shown["username"],
                "password": self.shown["password"],
                "csrfmiddlewaretoken": token,
            }
            browser.post("/sign-in", data=form, headers={"Referer": self.url}).raise_for_status()
            return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())

    def _start(self) -> None:
        self._postgres.start()
        self._postgres.create_database("loopguard")
        self._valkey.start()
        self.environment = {
            **os.environ,
            "DATABASE_URL": self._postgres.url("loopguard"),
            "REDIS_URL": self._valkey.url,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "LOOPGUARD_MODE": "embedded",
            "LOOPGUARD_SECRET_KEY": "only-for-benchmarks-" + "x" * 32,
            "LOOPGUARD_URL": self.url,
            "LOOPGUARD_LIVE_URL": self.live_url,
            "LOOPGUARD_BOOTSTRAP": "0",
            "BENCHMARKS_STATIC": str(self._folder / "static"),
            "PROMETHEUS_MULTIPROC_DIR": str(self._folder / "metrics"),
            **self._settings,
        }
        (self._folder / "metrics").mkdir()
        result = self._folder / "prepared.json"
        command = [sys.executable, "-m", "django", "prepare", "--result", str(result)]
        subprocess.run(command, cwd=ROOT, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        self.shown = json.loads(result.read_text())
        with self.connect() as database:
            database.execute(_CREATE)
        web, live = self._ports
        self._launch_web(web, web_processes(os.environ))
        self._launch("loopguard_site", "live", "--port", str(live))
        self.keep_workers(worker_processes(os.environ))
        deadline = time.monotonic() + START_SECONDS
        self._wait_until_ready(self.url, self.live_url, deadline=deadline)

    def web_urls(self, number: int) -> list[str]:
        """Return the addresses of so many `web`, each with a port and a process of its own; started where they are missing."""
        while len(self._webs) < number:
            port = free_port()
            self._launch_web(port, 1)
            self._webs.append(f"http://127.0.0.1:{port}")
        urls = self._webs[:number]
        self._wait_until_ready(*urls, deadline=time.monotonic() + START_SECONDS)
        return urls

    def keep_workers(self, number: int) -> None:
        """Start workers until so many run."""
        while len(self._workers) < number:
            self._workers.append(self._launch(
                "celery", "-A", "loopguard_site", "worker", "-n", f"worker-{len(self._workers)}@%h", "-P", "threads", "-c", "4", "-l", "WARNING",
                "--without-gossip", "--without-mingle", "--without-heartbeat"))  # fmt: skip

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time of each kind of process so far."""
        broker = self._valkey.child
        return {
            "web": processor_seconds(child.pid for child in self._web_children),
            "worker": processor_seconds(child.pid for child in self._workers),
            "postgresql": processor_seconds(self.postgres_pids()[:1]),
            "broker": processor_seconds([broker.pid] if broker else []),
        }

    def _launch_web(self, port: int, processes: int) -> None:
        self._web_children.append(self._launch(
            "granian", "--interface", "rsgi", "--port", str(port), "--http", "1", "--no-ws", "--workers", str(processes),
            "--log-level", "warning", "loopguard_site.rsgi:application"))  # fmt: skip

    def _wait_until_ready(self, *urls: str, deadline: float) -> None:
        while not self._is_ready(urls):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"LoopGuard did not come up:\n{(self._folder / 'log').read_text()[-3000:]}"
                )
            time.sleep(0.1)

    def _is_ready(self, urls: Iterable[str]) -> bool:
        try:
            return all(httpx.get(f"{url}/readyz", timeout=2).is_success for url in urls)
        except httpx.TransportError:
            return False

    def _launch(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            child = children.launch(
                [sys.executable, "-m", *command], cwd=ROOT, env=self.environment, stdout=log
            )
        self._children.append(child)
        return child

    def _stop(self) -> None:
        for child in self._children:
            children.end(child, signal.SIGTERM, timeout_seconds=10)
        self._valkey.stop()
        self._postgres.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
