"""Secrets are replaced and the broker is lost under load: no request is lost, and nobody is signed out."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from pathlib import Path

import httpx
import psycopg
import pytest
import redis
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from detection import jobs
from detection.models import Role
from detection.services.accounts import second_factor
from detection.services.audit import SYSTEM
from detection.services.keys import create_key, revoke_key
from loopguard_site.celery import app
from loopguard_site.supervisor.valkey import EmbeddedValkey
from tests.support.load import Load
from tests.support.plain_http import PLAIN
from tests.support.projects import make_member

from .balancer import Balancer
from .installation import Installation, wait_until

PASSWORD = "long enough to be one"
TASKS = 3
PATIENT = {"LOOPGUARD_GUARD_SECONDS": "20"}


def sign_in(browser: httpx.Client, url: str) -> None:
    browser.get(f"{url}/sign-in").raise_for_status()
    token = next(value for name, value in browser.cookies.items() if name.endswith("csrf"))
    form = {"username": "ana", "password": PASSWORD, "csrfmiddlewaretoken": token}
    browser.post(f"{url}/sign-in", data=form, headers={"Referer": url})
    assert is_signed_in(browser, url)


def is_signed_in(browser: httpx.Client, url: str) -> bool:
    return browser.get(f"{url}/account").status_code == 200


def authorization(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.promise("REL-46")
def test_secret_key_and_api_keys_are_replaced_under_load(project, tmp_path):
    ana = make_member(project, Role.OPERATOR, "ana")
    hasher = PBKDF2PasswordHasher()  # as the processes store it; tests store theirs in a cheaper way
    ana.password = hasher.encode(PASSWORD, hasher.salt(), iterations=1000)
    ana.save()
    (first_key, first), (_, second) = (create_key(project, name, SYSTEM) for name in ("first", "second"))
    old_secret, new_secret = secrets.token_hex(32), secrets.token_hex(32)
    old = Installation(os.environ["REDIS_URL"], tmp_path, LOOPGUARD_SECRET_KEY=old_secret, **PATIENT)
    rotated = {"LOOPGUARD_SECRET_KEY": new_secret, "LOOPGUARD_EARLIER_SECRET_KEYS": old_secret}
    new = Installation(os.environ["REDIS_URL"], tmp_path, **rotated, **PATIENT)
    last = Installation(os.environ["REDIS_URL"], tmp_path, LOOPGUARD_SECRET_KEY=new_secret, **PATIENT)
    try:
        old_web = old.start_web()
        old.start_worker()
        balancer = Balancer([old.url])
        with (
            httpx.Client(verify=PLAIN, timeout=60) as browser,
            balancer.looking(),
            Load(balancer, first) as load,
        ):
            sign_in(browser, old.url)
            new.start_web()
            balancer.addresses.append(new.url)
            load.work_on()
            assert is_signed_in(browser, new.url)  # and is given a cookie of the new key
            balancer.addresses.remove(old.url)
            load.headers = authorization(second)
            load.work_on()
            old_web.send_signal(signal.SIGTERM)
            old_web.wait(60)
            revoke_key(project, first_key.public_id, SYSTEM)
            load.work_on()
            last.start_web()
            assert is_signed_in(browser, last.url)
        assert {*load.unanswered} <= {503}, new.logs()
        rejected = httpx.get(f"{new.url}/api/v1/sessions", headers=authorization(first), verify=PLAIN)
        assert rejected.status_code == 401
        with psycopg.connect(old.database_url) as database:
            load.check_counts(database)
    finally:
        for installation in (old, new, last):
            installation.stop()


def test_a_recovery_code_outlives_the_secret_key(project, settings):
    ana = make_member(project, Role.OPERATOR, "ana")
    device = second_factor.begin(ana)
    device.confirmed = True
    device.save()
    first, second, *_ = second_factor.create_recovery_codes(ana, SYSTEM)
    assert second_factor.verify(ana, first)
    settings.SECRET_KEY = "another one " * 4
    assert second_factor.verify(ana, second)
    assert not second_factor.verify(ana, second)
    assert not second_factor.verify(make_member(project, Role.OPERATOR, "ben"), second)


@pytest.fixture
def broker():
    """A broker of the test's own, to be killed and replaced."""
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    folder.chmod(0o711)  # the server runs as another account
    server = EmbeddedValkey(folder / "valkey")
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def kill(broker):
    broker.child.kill()
    broker.child.wait(10)


@pytest.mark.promise("REL-47")
def test_a_broker_that_is_killed_and_replaced_by_an_empty_one_costs_no_request(
    broker, project, token, tmp_path
):
    installation = Installation(broker.url, tmp_path, **PATIENT)
    try:
        worker = installation.start_worker()
        installation.start_web()
        with Load(lambda: installation.url, token) as load:
            load.work_on()
            kill(broker)
            load.work_on()
            broker.start()
            load.work_on()
        assert {*load.unanswered} <= {503}, installation.logs()
        with psycopg.connect(installation.database_url) as database:
            load.check_counts(database)
        assert worker.poll() is None, installation.logs()
    finally:
        installation.stop()


@pytest.mark.promise("REL-47")
def test_a_worker_that_has_tasks_in_hand_outlives_its_broker(broker, project, tmp_path):
    installation = Installation(broker.url, tmp_path)

    def sweep():
        with app.connection_for_write(broker.url) as connection:
            app.send_task(jobs.SWEEP, connection=connection, retry=False)

    def are_in_hand():
        with redis.Redis.from_url(broker.url) as client:
            return client.hlen("loopguard:unacked") > 0

    def is_taken():
        with redis.Redis.from_url(broker.url) as client:
            return client.llen("loopguard:loopguard") == 0

    try:
        worker = installation.start_worker()
        with psycopg.connect(installation.database_url) as database:
            # Each sweep waits to note its heartbeat.
            database.execute("LOCK TABLE detection_partheartbeat IN EXCLUSIVE MODE")
            for _ in range(TASKS):
                sweep()
            assert wait_until(are_in_hand), installation.logs()
            kill(broker)
            broker.start()
            sweep()
            assert wait_until(is_taken), installation.logs()
        assert worker.poll() is None, installation.logs()
    finally:
        installation.stop()
