"""What a worker or beat answers at its probe address."""

import contextlib
import socket

import httpx
import pytest
from django.db import connections

from detection.selectors.database_check import database_check
from detection.services.keys import principal_cache
from detection.tasks import probes
from detection.web import process_metrics
from detection.web.process_metrics import readers
from loopguard_site import env
from tests.support.plain_http import PLAIN
from tests.support.projects import make_key, make_project

ELSEWHERE = {"X-Forwarded-For": "192.0.2.7"}


@pytest.fixture
def url(transactional_db):
    server = probes.serve(("127.0.0.1", 0))
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def no_database():
    settings = connections["default"].settings_dict
    host, settings["HOST"] = settings["HOST"], "/nowhere"
    principal_cache.clear()
    database_check.clear()
    try:
        yield
    finally:
        settings["HOST"] = host
        database_check.clear()


def get(url, **headers):
    return httpx.get(url, headers=headers, verify=PLAIN, timeout=10)


def with_key(*scopes):
    return {"Authorization": f"Bearer {make_key(make_project(), scopes=list(scopes))}"}


def test_it_is_healthy_while_it_answers_and_ready_while_the_database_does(url):
    database_check.clear()
    assert get(f"{url}/healthz").status_code == 200
    assert get(f"{url}/readyz").json() == {"status": "ready", "database": "ok"}
    with no_database():
        assert get(f"{url}/readyz").status_code == 503
        assert get(f"{url}/healthz").status_code == 200
    assert get(f"{url}/").status_code == 404
    assert httpx.post(f"{url}/metrics", verify=PLAIN).status_code == 501


def test_metrics_are_for_this_machine_and_for_keys_with_the_scope_metrics_or_admin(url):
    assert "process_resident_memory_bytes" in get(f"{url}/metrics").text
    assert get(f"{url}/metrics", Host="rebound.example").status_code == 401
    assert get(f"{url}/metrics", **ELSEWHERE).status_code == 401
    assert get(f"{url}/metrics", **ELSEWHERE, **with_key("read")).status_code == 401
    assert get(f"{url}/metrics", Authorization="Bearer lg_nonsense").status_code == 401
    for scope in ("metrics", "admin"):
        assert get(f"{url}/metrics", **ELSEWHERE, **with_key(scope)).status_code == 200


def test_a_reader_reads_on_while_the_database_is_away_and_nobody_else(url):
    known, unknown = with_key("metrics"), with_key("metrics")
    assert get(f"{url}/metrics", **known).status_code == 200
    with no_database():
        assert get(f"{url}/metrics", **known).status_code == 200
        assert get(f"{url}/metrics", **unknown).status_code == 503
    readers.clear()


def test_clients_that_send_nothing_do_not_keep_others_out(url, monkeypatch):
    monkeypatch.setattr(probes, "SECONDS", 3.0)
    port = int(url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(probes.MAX_REQUESTS)]
    with socket.create_connection(("127.0.0.1", port)) as one_more:
        one_more.settimeout(10)
        assert one_more.recv(1) == b""
    for one in silent:
        one.settimeout(10)
        assert one.recv(1) == b""  # given up after the timeout
        one.close()
    assert get(f"{url}/healthz").status_code == 200


def test_an_address_that_is_in_use_is_no_reason_to_end(url):
    assert probes.serve(("127.0.0.1", int(url.rpartition(":")[2]))) is None


def test_tasks_are_counted_and_timed():
    times = probes.TaskTimes()
    task = type("Task", (), {"name": "detection.example"})
    times.begin(task_id="a")
    times.end(task_id="a", task=task, state="SUCCESS")
    times.end(task_id="b", task=task, state="FAILURE")
    text = process_metrics.exposition().decode()
    assert 'loopguard_tasks_total{state="success",task="detection.example"} 1.0' in text
    assert 'loopguard_tasks_total{state="failure",task="detection.example"} 1.0' in text
    assert 'loopguard_task_seconds_count{task="detection.example"} 1.0' in text
    assert times._started == {}


@pytest.mark.parametrize(
    "given", ["8302", "localhost:8302", "127.0.0.1", "127.0.0.1:0", "::1", "1.2.3.4:99999", "u@1.2.3.4:1"]
)
def test_a_wrong_address_is_rejected_at_the_start(given):
    with pytest.raises(
        env.EnvironmentProblem, match=r"^LOOPGUARD_PROBE_ADDRESS must be an IP address and a port"
    ):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_PROBE_ADDRESS": given})


def test_addresses_of_both_kinds_are_read():
    for given, address in (("0.0.0.0:8302", ("0.0.0.0", 8302)), ("[::1]:8302", ("::1", 8302)), ("", None)):
        assert env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_PROBE_ADDRESS": given}).probe_address == address
