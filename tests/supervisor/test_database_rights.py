"""One command makes two database roles, on new data and on data of before; LoopGuard works as the lesser one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psycopg
import pytest

from loopguard_site.supervisor.postgres import USER, EmbeddedPostgres
from tests.support.audit_rights import even_the_owner_meets_triggers, only_adds_to_the_audit

from .running import ROOT, Run

_AS_BEFORE = "local all all trust\nlocal replication all trust\n"


@pytest.fixture
def data_of_before(run: Run) -> Run:
    """A data folder of the time when everything ran as the superuser, without a password, up to its last migration."""
    run.data.mkdir()
    run.data.chmod(0o711)
    server = EmbeddedPostgres(run.data / "postgres", durable=False)
    server.start()
    try:
        server.create_database("loopguard")
        environment = {
            **run.environment,
            "DATABASE_URL": server.url("loopguard"),
            "LOOPGUARD_MODE": "embedded",
            "LOOPGUARD_SECRET_KEY": "x" * 40,
        }
        command = [sys.executable, "manage.py", "migrate", "-v", "0", "detection", "0005"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        with psycopg.connect(server.url("loopguard"), autocommit=True) as connection:
            connection.execute(
                "INSERT INTO detection_auditentry (actor, action, subject, request_id)"
                " VALUES ('bo', 'test.before', 'x', '')"
            )
            connection.execute(f"ALTER ROLE {USER} PASSWORD NULL")
    finally:
        server.stop()
    (server.folder / "cluster" / "pg_hba.conf").write_text(_AS_BEFORE)
    return run


def addresses_of(run: Run) -> tuple[str, str]:
    """The addresses of the role that LoopGuard runs as, and of the owner."""
    environment = json.loads((run.data / "running.json").read_text())["environment"]
    return environment["DATABASE_URL"], environment["LOOPGUARD_OWNER_DATABASE_URL"]


def post(browser: httpx.Client, path: str, **form: str) -> None:
    token = next(value for name, value in browser.cookies.items() if name.endswith("csrf"))
    browser.post(path, data={**form, "csrfmiddlewaretoken": token}).raise_for_status()


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_data_of_before_is_closed_and_everything_works_as_the_lesser_role(data_of_before):
    run = data_of_before
    up, ready = run.start()
    runtime, owner = addresses_of(run)

    # Events in, evaluated by a worker, stopped by a person, and on record with what was there before.
    events = [
        {"session": "s-1", "type": kind, "call_id": f"c{number}", **more}
        for number in range(6)
        for kind, more in (("call", {"tool": "search_web", "arguments": {"q": "again"}}), ("result", {"content": "0"}))
    ]  # fmt: skip
    key = {"Authorization": f"Bearer {ready['api_key']}"}
    httpx.post(f"{ready['url']}/api/v1/events", json={"events": events}, headers=key).raise_for_status()
    deadline = time.monotonic() + 60
    while not rows(runtime, "SELECT 1 FROM detection_incident"):
        assert time.monotonic() < deadline, run.log.read_text()
        time.sleep(0.1)
    with httpx.Client(
        base_url=ready["url"], follow_redirects=True, headers={"Referer": ready["url"]}
    ) as browser:
        browser.get("/sign-in")
        post(browser, "/sign-in", username=ready["username"], password=ready["password"])
        post(browser, "/p/default/live/stop", session="s-1", reason="enough")
        shown = browser.get("/p/default/system").text
    assert re.search(r"Audit</b>.{0,80}Working", shown)
    audited = rows(runtime, "SELECT actor, action FROM detection_auditentry ORDER BY id")
    assert audited[0] == ("bo", "test.before")
    assert ("admin", "session.stop") in audited
    assert "only triggers" not in run.log.read_text()

    # That role can do no more than that, and nobody is let in without a password.
    only_adds_to_the_audit(runtime, USER)
    even_the_owner_meets_triggers(owner)
    for user in (USER, "loopguard_app"):
        with pytest.raises(psycopg.OperationalError, match="no password"):
            psycopg.connect(re.sub(r"//.*?@", f"//{user}@", runtime), passfile=os.devnull).close()
    if sys.platform == "linux":
        for pid in run.pids():
            assert owner.encode() not in Path("/proc", str(pid), "environ").read_bytes()

    # The operator's own commands find both roles: what writes goes on, what migrates has the owner.
    surroundings = {**run.environment, "LOOPGUARD_DATA": str(run.data)}
    for command in (
        ["prepare", "--new-secrets"],
        ["createsuperuser", "--noinput", "--username=bo", "--email=bo@example.org"],
        ["migrate", "--database=owner"],
        ["shell", "-c", "from detection.services.maintenance import retention; retention.housekeeping()"],
    ):
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT, env={**surroundings, "DJANGO_SUPERUSER_PASSWORD": "long enough"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    # The next start makes new passwords and finds everything.
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
    up, _ = run.start()
    runtime_now, owner_now = addresses_of(run)
    assert runtime_now != runtime
    assert owner_now != owner
    assert rows(runtime_now, "SELECT actor FROM detection_auditentry ORDER BY id")[0] == ("bo",)
    only_adds_to_the_audit(runtime_now, USER)
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
