"""Runs everything on one machine: servers, set-up, the four processes, shutdown.

Does not belong here: starting a child (`children`), restarting it (`processes`), its work.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from loopguard_site.env import (
    EnvironmentProblem,
    drain_seconds,
    required_free_bytes,
    web_processes,
    worker_processes,
)
from loopguard_site.layout import ROOT, is_checkout

from . import addresses
from .code_access import CodeAccess
from .console import Console
from .data_folder import DataFolder, write_private
from .errors import SupervisorError, disk_error, full_disk
from .postgres import EmbeddedPostgres
from .processes import Fleet, Process
from .runtime_folder import code_of_processes, process_environment, runtime_folder
from .valkey import EmbeddedValkey
from .welcome import FirstStop, credentials, welcome

_DATABASE = "loopguard"
_RUNTIME_ROLE = "loopguard_app"
# The owner's address goes to `prepare` and to commands of the operator, never to the four processes.
_OWNER_URL = "LOOPGUARD_OWNER_DATABASE_URL"
_READY_TIMEOUT_SECONDS = 120.0
_END_TIMEOUT_SECONDS = 25.0
_SERVER_PAUSE_SECONDS = 5.0
_FILES_PERIOD_SECONDS = 5.0
_FULL_BYTES = 4 * 1024**2
"""A process of `web` reserves 1 MB for each file of its counts."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    data: Path
    host: str
    port: int
    demo: bool
    ready_file: Path | None
    new_secrets: bool


class _Interrupted(BaseException):
    """The operator interrupted the set-up."""


class Supervisor:
    """One run of LoopGuard.

    Parameters
    ----------
    options : Options
        From the command line.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._console = Console()
        self._folder = DataFolder(options.data)
        self._code: CodeAccess | None = None
        self._runtime = self._folder.path
        self._host = options.host
        self._servers: list[EmbeddedPostgres | EmbeddedValkey] = []
        self._servers_due = self._files_due = 0.0
        self._is_noted = True
        self._environment: dict[str, str] = {}
        self._owner: dict[str, str] = {}
        self._fleet: Fleet | None = None
        self._setting_up = True
        self._stops_asked = 0
        self._drain_seconds = 0.0

    def run(self) -> None:
        """Set up what is missing, run until a signal to stop, and end everything in order.

        Raises
        ------
        SupervisorError
            LoopGuard cannot start; the message says what to do.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        self._host = addresses.address_of(self._options.host)
        self._code = code_of_processes(self._folder.path, os.environ)
        if self._code is not None:
            os.umask(0o022)  # that account reads what this one writes, unless its mode says otherwise
        with self._folder:
            try:
                fleet = self._set_up()
                while not self._stops_asked:
                    fleet.tick()
                    self._revive_servers()
                    self._keep_files()
            except _Interrupted:
                pass
            finally:
                self._setting_up = False
                self._end()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops_asked += 1
        if self._setting_up:
            self._setting_up = False
            raise _Interrupted

    def _set_up(self) -> Fleet:
        """Start everything, in order, until it answers; an error of a disk becomes one sentence."""
        try:
            return self._start()
        except OSError as problem:
            if error := disk_error(problem, self._runtime):
                raise error from problem
            raise

    def _start(self) -> Fleet:
        options = self._options
        if options.ready_file:
            options.ready_file.unlink(missing_ok=True)
        account = self._code.account.name if self._code is not None else ""
        port = addresses.two_free_ports(self._host, options.port, account)
        self._runtime = runtime_folder(self._folder.path, self._code)
        self._environment = self._common_environment(port)
        self._start_servers()
        shown, first_stop = self._prepare()
        try:
            self._drain_seconds = drain_seconds(os.environ)
            self._empty_metrics()
            first, later = _processes(self._host, port, self._runtime)
            own = process_environment(self._code, self._runtime)
            fleet = self._fleet = self._make_fleet(first, own, self._code)
            self._wait_until_ready(fleet, port)
        except BaseException:
            # They exist now, and cannot be shown later.
            if new := credentials(shown):
                self._console.block("\n".join(new))
            raise
        for process in later:
            fleet.add(process)
        self._console.block(welcome(self._environment, self._folder.path, shown, first_stop))
        if options.ready_file:
            ready = {
                "url": self._environment["LOOPGUARD_URL"],
                "live_url": self._environment["LOOPGUARD_LIVE_URL"],
            }
            secrets = {key: shown[key] for key in ("api_key", "username", "password") if key in shown}
            write_private(options.ready_file, json.dumps(ready | secrets))
        if options.demo:
            self._console.say(
                "Playing scripted agents, and two weeks of their past. The console marks them as demo."
            )
            fleet.add(_history())
            fleet.add(_demo(self._environment, shown["demo_key"]))
        self._setting_up = False
        return fleet

    def _common_environment(self, port: int) -> dict[str, str]:
        """Return the environment of every child: the operator's, completed by the supervisor."""
        defaults = {
            "LOOPGUARD_MODE": "embedded",
            "LOOPGUARD_SECRET_KEY": os.environ.get("LOOPGUARD_SECRET_KEY") or self._folder.secret_key(),
            "LOOPGUARD_URL": addresses.url(self._host, port),
            "LOOPGUARD_LIVE_URL": addresses.url(self._host, port + 1),
        }
        ours = {
            "DJANGO_SETTINGS_MODULE": "loopguard_site.settings",
            "LOOPGUARD_BOOTSTRAP": "0",
            "LOOPGUARD_DATA": str(self._folder.path),
            "LOOPGUARD_RUNTIME_FOLDER": str(self._runtime),
            "PYTHONUNBUFFERED": "1",
        }
        # Of several workers on one machine, only one could have the address; `web` shows the metrics of all of them.
        given = {k: v for k, v in os.environ.items() if k not in (_OWNER_URL, "LOOPGUARD_PROBE_ADDRESS")}
        return defaults | given | ours

    def _start_servers(self) -> None:
        if os.environ.get(_OWNER_URL):
            self._owner = {_OWNER_URL: os.environ[_OWNER_URL]}
        if not os.environ.get("DATABASE_URL"):
            clients = self._code.account if self._code is not None else None
            postgres = EmbeddedPostgres(self._folder.path / "postgres", clients=clients)
            self._servers.append(postgres)
            self._console.say("Starting PostgreSQL.")
            postgres.start()
            self._say_if_full(postgres)
            postgres.create_database(_DATABASE)
            self._owner = {_OWNER_URL: postgres.url(_DATABASE)}
            runtime = postgres.url(_DATABASE, _RUNTIME_ROLE, secrets.token_urlsafe(24))
            self._environment["DATABASE_URL"] = runtime
            self._environment["LOOPGUARD_DATABASE_FOLDER"] = str(postgres.cluster)
        if not os.environ.get("REDIS_URL"):
            valkey = EmbeddedValkey(self._folder.path / "valkey", environment=self._folder.mark())
            self._servers.append(valkey)
            self._console.say("Starting Valkey.")
            valkey.start()
            self._environment["REDIS_URL"] = valkey.url

    def _prepare(self) -> tuple[dict[str, str], FirstStop]:
        """Migrate and, at the first start, create login and key.

        Returns
        -------
        tuple
            What is shown only once, and which of several identical calls the settings stop.
        """
        result = self._folder.path / "prepared.json"
        result.unlink(missing_ok=True)
        flags = [
            flag
            for flag, on in (("--new-secrets", self._options.new_secrets), ("--demo", self._options.demo))
            if on
        ]
        command = [sys.executable, "-m", "loopguard_site", "prepare", "--result", str(result), *flags]
        self._console.say("Setting up the database.")
        setup = Process("setup", command, kept=False)
        self._fleet = self._make_fleet([setup], self._owner)
        while setup.status is None:
            self._fleet.tick(0.1)
        if setup.status != 0:
            self._check_disks()
            raise SupervisorError("The database could not be prepared. See the lines of 'setup' above.")
        shown = json.loads(result.read_text(encoding="utf-8"))
        result.unlink()
        first_stop = FirstStop(**shown.pop("trial"))
        return {str(key): str(value) for key, value in shown.items() if value}, first_stop

    def _empty_metrics(self) -> None:
        """Let the processes of `web` count together, from zero."""
        folder = self._runtime / "metrics"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        if self._code is not None:
            self._code.account.own(folder)
        self._environment["PROMETHEUS_MULTIPROC_DIR"] = str(folder)

    def _make_fleet(
        self, processes: list[Process], more: Mapping[str, str], code: CodeAccess | None = None
    ) -> Fleet:
        # `python -m` finds modules of the working directory first; an installation must not pick up a user's.
        folder = ROOT if is_checkout() else self._runtime
        environment = {**self._environment, **more, **self._folder.mark()}
        return Fleet(processes, environment, folder, self._console, self._note_running, code)

    def _note_running(self) -> None:
        servers = [server.child.pid for server in self._servers if server.child is not None]
        own = self._fleet.pids() if self._fleet is not None else []
        environment = {**self._environment, **self._owner}
        try:
            self._folder.note_running(self._environment["LOOPGUARD_URL"], environment, [*servers, *own])
            self._is_noted = True
        except OSError as problem:  # a full disk ends nothing; written again once there is space
            if self._is_noted:
                self._console.say(f"{self._folder.path} cannot be written: {problem.strerror}.")
            self._is_noted = False

    def _check_disks(self) -> None:
        """Name a full disk as the cause of what has ended."""
        for folder in (
            self._runtime,
            *(one.cluster for one in self._servers if isinstance(one, EmbeddedPostgres)),
        ):
            if shutil.disk_usage(folder).free < _FULL_BYTES:
                raise SupervisorError(full_disk(folder))

    def _wait_until_ready(self, fleet: Fleet, port: int) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_SECONDS
        while not (
            addresses.answers(self._host, port, "/readyz")
            and addresses.answers(self._host, port + 1, "/healthz")
        ):
            if problem := next((process.problem for process in fleet.processes if process.problem), ""):
                raise SupervisorError(problem)
            if any(process.status is not None for process in fleet.processes):
                self._check_disks()
            if time.monotonic() > deadline:
                raise SupervisorError(
                    f"LoopGuard did not start within {_READY_TIMEOUT_SECONDS:.0f} s. See the lines above."
                )
            fleet.tick(0.1)

    def _revive_servers(self) -> None:
        """Restart a server that died; PostgreSQL recovers from its log by itself."""
        if time.monotonic() < self._servers_due:
            return
        for server in self._servers:
            if server.child is not None and server.child.poll() is None:
                continue
            self._console.say(f"{type(server).__name__.removeprefix('Embedded')} died. Restarting it.")
            try:
                server.start()
                if isinstance(server, EmbeddedPostgres):
                    self._say_if_full(server)
                self._note_running()
            except SupervisorError as problem:
                self._console.say(str(problem))
                self._servers_due = time.monotonic() + _SERVER_PAUSE_SECONDS

    def _keep_files(self) -> None:
        """Write what a full disk has prevented, and the reserve that it has used."""
        if time.monotonic() < self._files_due:
            return
        self._files_due = time.monotonic() + _FILES_PERIOD_SECONDS
        if not self._is_noted:
            self._note_running()
        for server in self._servers:
            if isinstance(server, EmbeddedPostgres):
                server.keep_disk_reserve()

    def _say_if_full(self, postgres: EmbeddedPostgres) -> None:
        usage = shutil.disk_usage(postgres.cluster)
        with contextlib.suppress(EnvironmentProblem):  # the set-up reports it
            if usage.free < required_free_bytes(self._environment, usage.total):
                self._console.say(
                    f"The disk of {postgres.cluster} is full. LoopGuard is "
                    "read-only: it rejects new events until there is space."
                )

    def _end(self) -> None:
        if self._fleet is None and not self._servers:
            return
        asked_before = max(self._stops_asked, 1)
        self._console.say("Finishing work in flight, then stopping. Press Ctrl-C again to stop now.")
        if self._fleet is not None:
            self._fleet.end(
                _END_TIMEOUT_SECONDS + self._drain_seconds, lambda: self._stops_asked > asked_before
            )
        for server in reversed(self._servers):
            server.stop()
        self._console.say("Stopped.")


def _processes(host: str, port: int, runtime: Path) -> tuple[list[Process], list[Process]]:
    """Return the processes that a start waits for, and those that may come after.

    docs/operations.md has the same commands.
    """
    module = [sys.executable, "-m"]
    web = ["granian", "--interface", "rsgi", "--host", host, "--port", str(port), "--http", "1", "--no-ws"]
    web += ["--workers", str(web_processes(os.environ))]
    web += ["--backpressure", "8192"]  # connections; what runs at a time is up to the front
    web += ["--http1-header-read-timeout", "10000", "--http1-buffer-size", "65536"]  # what a head may take
    web += ["--workers-kill-timeout", "80", "--respawn-failed-workers", "--log-level", "warning"]
    live = ["loopguard_site", "live", "--host", host, "--port", str(port + 1)]
    celery = ["celery", "--quiet", "--skip-checks", "-A", "loopguard_site"]
    worker = ["worker", "-P", "threads", "-c", os.environ.get("LOOPGUARD_WORKER_THREADS", "4"), "-l", "INFO"]
    worker += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    beat = ["beat", "-l", "WARNING", "--pidfile="]
    workers = [
        Process(
            name, [*module, *celery, *worker, "-n", f"{name}@%h"], heartbeat=runtime / f"{name}.heartbeat"
        )
        for name in ("worker", *(f"worker-{number}" for number in range(2, worker_processes(os.environ) + 1)))
    ]
    first = [
        Process(
            "web",
            [*module, *web, "loopguard_site.rsgi:application"],
            check=lambda: addresses.check_port(host, port),
            serving=runtime / "web.serving",
        ),
        Process("live", [*module, *live], check=lambda: addresses.check_port(host, port + 1)),
        workers[0],
    ]
    return first, [
        *workers[1:],
        Process("beat", [*module, *celery, *beat], heartbeat=runtime / "beat.heartbeat"),
    ]


def _history() -> Process:
    return Process("history", [sys.executable, "-m", "loopguard_site", "demo_history"], kept=False)


def _demo(environment: dict[str, str], key: str) -> Process:
    command = [sys.executable, "-m", "loopguard_site", "demo"]
    command += ["--url", environment["LOOPGUARD_URL"], "--key", key]
    return Process("demo", command, kept=False)
