"""A PostgreSQL server and a standby that follows it, as an installation with a failover has them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from loopguard_site.supervisor import children
from loopguard_site.supervisor.postgres import USER, EmbeddedPostgres

BACKUP_SECONDS = 60


class Standby(EmbeddedPostgres):
    """A server that begins as a copy of another one, and follows it until it is promoted."""

    def __init__(self, folder: Path, primary: EmbeddedPostgres) -> None:
        super().__init__(folder, durable=False)
        self._primary = primary
        self._password = primary._password

    def _make_cluster(self, programs: Path) -> None:
        self._cluster.mkdir(mode=0o700)
        if self._account:
            self._account.own(self._cluster)
        subprocess.run(
            [programs / "pg_basebackup", "-D", self._cluster, "-d", self._primary.url("postgres"), "-R", "-c", "fast"],
            cwd=self._cluster, check=True, timeout=BACKUP_SECONDS, capture_output=True,
            **(self._account.popen_arguments() if self._account else {}),
        )  # fmt: skip

    def _admit(self, method: str) -> None:
        """Ask for the password from the start: the copy has that of the primary, and cannot be written to."""

    def _lock(self) -> None:
        self._is_locked = True


@dataclass(frozen=True)
class Pair:
    """The two servers, with a database in which a commit is acknowledged when both have it."""

    primary: EmbeddedPostgres
    standby: Standby
    database: str

    @property
    def url(self) -> str:
        """The address of the database on whichever server can be written to."""
        folders = ",".join(quote(str(one._socket_folder), safe="") for one in (self.primary, self.standby))
        password = self.primary._password
        return f"postgresql://{USER}:{password}@/{self.database}?host={folders}&options=-csynchronous_commit%3Don"

    def set_read_only(self, *, is_read_only: bool) -> None:
        """Let the primary reject every write of connections that are open, as of new ones, or none."""
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as administrator:
            administrator.execute("SET default_transaction_read_only = off")
            value = "on" if is_read_only else "off"
            administrator.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            administrator.execute("SELECT pg_reload_conf()")

    def kill_primary(self) -> None:
        """Let the primary vanish with everything that is under way."""
        assert self.primary.child is not None
        children.kill_group(self.primary.child.pid)
        self.primary.child.wait(10)

    def promote(self) -> None:
        """Make the standby the server that can be written to."""
        with psycopg.connect(self.standby.url("postgres"), autocommit=True) as administrator:
            assert administrator.execute("SELECT pg_promote(true, 30)").fetchone() == (True,)


@contextlib.contextmanager
def running_pair(folder: Path, database: str) -> Iterator[Pair]:
    primary = EmbeddedPostgres(folder / "primary", durable=False)
    pair = Pair(primary, Standby(folder / "standby", primary), database)
    try:
        primary.start()
        primary.create_database(database)
        pair.standby.start()
        with psycopg.connect(primary.url("postgres"), autocommit=True) as administrator:
            administrator.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            administrator.execute("SELECT pg_reload_conf()")
        yield pair
    finally:
        pair.standby.stop()
        primary.stop()
