"""What System and `prepare` say of servers and processes that are not as they should be."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import yaml
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from detection.api import prometheus
from detection.selectors import servers
from detection.services.maintenance import beat_process
from detection.services.maintenance.first_start import first_start
from loopguard_site.layout import ROOT
from loopguard_site.supervisor.valkey import EmbeddedValkey
from tests.console.scenes import text

from . import installation as place
from .installation import Installation, wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def operator(transactional_db):
    made = first_start()
    client = Client()
    assert client.login(username=made.username, password=made.password)
    return client


def system(client):
    return text(client.get("/p/default/system"))


@pytest.fixture
def broker(settings):
    """A broker of the test's own, whose settings it may change."""
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    folder.chmod(0o711)
    valkey = EmbeddedValkey(folder / "valkey")
    valkey.start()
    settings.CELERY_BROKER_URL = valkey.url
    yield redis.Redis.from_url(valkey.url)
    valkey.stop()


def senders(broker) -> set[str]:
    """Return the processes that have sent the tasks which wait in the broker."""
    prefix = settings.CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"]
    queue = f"{prefix}{settings.CELERY_TASK_DEFAULT_QUEUE}"
    tasks = broker.lrange(queue, 0, -1)
    return {re.sub("^gen|@.*$", "", json.loads(task)["headers"]["origin"]) for task in tasks}


@pytest.mark.promise("REL-44")
def test_of_two_beats_one_sends_the_tasks_and_the_other_takes_over(operator, broker, tmp_path):
    installation = Installation(settings.CELERY_BROKER_URL, tmp_path)
    try:
        first = installation.start_beat()
        assert wait_until(lambda: len(beat_process.running()) == 1), installation.logs()
        second = installation.start_beat()
        assert wait_until(lambda: len(beat_process.running()) == 2), installation.logs()
        assert [name.rpartition("/")[2] for name in beat_process.running()] == [
            str(first.pid),
            str(second.pid),
        ]
        assert b"\nloopguard_beat_processes 2.0\n" in prometheus.exposition()
        broker.flushall()
        assert wait_until(lambda: senders(broker) != set()), installation.logs()
        assert senders(broker) == {str(first.pid)}

        # A process that is frozen shows itself no longer, and one that is dead neither.
        first.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: str(second.pid) in senders(broker)), installation.logs()
        first.kill()
        first.wait(10)
        broker.flushall()
        assert wait_until(lambda: senders(broker) != set()), installation.logs()
        assert senders(broker) == {str(second.pid)}

        # Without any other, the next one sends at once.
        installation.stop()
        third = installation.start_beat()
        assert wait_until(lambda: str(third.pid) in senders(broker)), installation.logs()
        assert [name.rpartition("/")[2] for name in beat_process.running()] == [str(third.pid)]
    finally:
        installation.stop()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_a_broker_that_may_drop_tasks_is_named(operator, broker, policy):
    assert "Broker Working answers in" in system(operator)
    broker.config_set("maxmemory-policy", policy)
    shown = system(operator)
    assert "Broker Not as tested answers in" in shown
    assert f"`maxmemory-policy` is {policy}" in shown
    broker.config_set("maxmemory-policy", "noeviction")
    assert servers.broker_server().problem == ""


def test_a_start_warns_of_a_broker_that_may_drop_tasks(transactional_db, broker):
    name = f"prepared_{secrets.token_hex(4)}"
    broker.config_set("maxmemory-policy", "allkeys-lfu")
    at = urlsplit(place.test_database_url())
    environment = {
        **os.environ,
        "DATABASE_URL": at._replace(path=f"/{name}").geturl(),
        "REDIS_URL": settings.CELERY_BROKER_URL,
        "LOOPGUARD_MODE": "test",
    }
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "loopguard_site", "prepare"],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert done.returncode == 0, done.stderr
    assert "`maxmemory-policy` is allkeys-lfu" in done.stderr
    assert "Sign in as admin" in done.stdout


def test_a_broker_that_hides_its_settings_does_not_count_as_away(operator, broker):
    broker.execute_command("ACL", "SETUSER", "default", "-info")
    try:
        shown = system(operator)
    finally:
        broker.execute_command("ACL", "SETUSER", "default", "+info")
    assert "Broker Not as tested answers in" in shown
    assert "does not tell its version" in shown


@pytest.mark.parametrize(("oldest", "newest", "is_refused"), [(99, 99, True), (9, 14, False)])
def test_a_server_of_another_version_is_named_and_prepare_refuses_one_that_is_too_old(
    operator, broker, monkeypatch, oldest, newest, is_refused
):
    monkeypatch.setattr(servers, "TESTED", dict.fromkeys(servers.TESTED, (oldest, newest)))
    tested = f"{oldest} to {newest}" if oldest != newest else f"{oldest}"
    shown = system(operator)
    assert re.search(
        rf"Database Not as tested .* PostgreSQL [0-9.]+ is not supported; .* tested on {tested}\.", shown
    )
    if is_refused:
        with pytest.raises(CommandError, match="not supported"):
            call_command("prepare")


def test_the_servers_of_this_run_are_as_tested(transactional_db):
    assert servers.database_server().problem == ""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        assert servers.database_server().version == cursor.fetchone()[0].partition(" ")[0]
    assert servers.broker_server().problem == ""


def test_the_page_and_the_images_name_what_is_tested():
    def span(product):
        oldest, newest = servers.TESTED[product]
        return f"{product} {oldest}" if oldest == newest else f"{product} {oldest} to {newest}"

    page = (ROOT / "docs" / "operations.md").read_text()
    assert f"LoopGuard needs {span('PostgreSQL')} and {span('Valkey')} or {span('Redis')}." in page
    images = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, product in (("postgres", "PostgreSQL"), ("valkey", "Valkey")):
        major = int(re.search(r":(\d+)\.", images[name]["image"])[1])
        assert servers.TESTED[product][0] <= major <= servers.TESTED[product][1]
