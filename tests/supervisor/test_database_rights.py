"""One command makes two database roles, also on data of an older version; LoopGuard works as the lesser one."""

import json
import os
import re
import sys
import time
from pathlib import Path

import httpx
import psycopg
import pytest

from loopguard_site.supervisor.postgres import USER
from tests.support.audit_rights import even_the_owner_meets_triggers, only_adds_to_the_audit

from .running import descendants

OPERATORS_CODE = """
from django.core.management import call_command
from detection.services.retention import retention
call_command("createsuperuser", interactive=False, username="bo", email="bo@example.org")
call_command("migrate", database="owner", verbosity=0)
retention.housekeeping()
"""


def post(browser: httpx.Client, path: str, **form: str) -> None:
    token = next(value for name, value in browser.cookies.items() if name.endswith("csrf"))
    browser.post(path, data={**form, "csrfmiddlewaretoken": token}).raise_for_status()


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_the_lesser_role_detects_stops_and_audits(upgraded, tmp_path):
    events = [
        {"session": "s-1", "type": kind, "call_id": f"c{number}", **more}
        for number in range(6)
        for kind, more in (("call", {"tool": "search_web", "arguments": {"q": "again"}}), ("result", {"content": "0"}))
    ]  # fmt: skip
    key = {"Authorization": f"Bearer {upgraded.api_key}"}
    httpx.post(f"{upgraded.url}/api/v1/events", json={"events": events}, headers=key).raise_for_status()
    deadline = time.monotonic() + 60
    while not rows(upgraded.runtime, "SELECT 1 FROM detection_incident"):
        assert time.monotonic() < deadline, upgraded.run.log.read_text()
        time.sleep(0.1)
    upgraded.manage("prepare", "--new-secrets", "--result", str(tmp_path / "login.json"))
    login = json.loads((tmp_path / "login.json").read_text())
    with httpx.Client(
        base_url=upgraded.url, follow_redirects=True, headers={"Referer": upgraded.url}
    ) as browser:
        browser.get("/sign-in")
        post(browser, "/sign-in", username=login["username"], password=login["password"])
        post(browser, "/p/default/live/stop", session="s-1", reason="enough")
        system_page = browser.get("/p/default/system").text
    assert re.search(r"Audit</b>.{0,120}Working", system_page, re.DOTALL)
    audited = rows(upgraded.runtime, "SELECT actor, action FROM detection_auditentry ORDER BY id")
    assert audited[0] == ("bo", "test.before")
    assert ("admin", "session.stop") in audited


def test_the_lesser_role_only_adds_to_the_audit(upgraded):
    only_adds_to_the_audit(upgraded.runtime, USER)
    even_the_owner_meets_triggers(upgraded.owner)
    assert "only triggers" not in upgraded.run.log.read_text()


def test_the_lesser_role_recycles_the_log_of_a_full_disk(upgraded):
    with psycopg.connect(upgraded.runtime, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


@pytest.mark.parametrize("role", [USER, "loopguard_app"])
def test_no_role_connects_without_a_password(upgraded, role):
    with pytest.raises(psycopg.OperationalError, match="no password"):
        psycopg.connect(re.sub(r"//.*?@", f"//{role}@", upgraded.runtime), passfile=os.devnull).close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_of_the_installation_has_the_owners_address(upgraded):
    for pid in upgraded.run.pids():
        assert upgraded.owner.encode() not in Path("/proc", str(pid), "environ").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_argument_of_a_process_and_no_file_that_others_may_read_contains_a_secret(upgraded):
    key = (upgraded.run.data / "secret_key").read_text().strip()
    note = (upgraded.run.data / "running.json").read_text()
    urls = [upgraded.owner, upgraded.runtime, json.loads(note)["environment"]["REDIS_URL"]]
    secrets = [key, upgraded.api_key, *(re.search(r":([^:@/]+)@", url)[1] for url in urls)]
    supervisor = json.loads(note)["pid"]
    started = descendants(supervisor)
    assert len(started) >= 7
    for pid in started:
        arguments = Path("/proc", str(pid), "cmdline").read_bytes().decode()
        assert [secret for secret in secrets if secret in arguments] == [], arguments
    readable = [
        file for file in upgraded.run.data.rglob("*") if file.is_file() and file.stat().st_mode & 0o044
    ]
    assert not any("cluster" in file.parts for file in readable)
    for file in readable:
        content = file.read_bytes()
        assert [secret for secret in secrets if secret.encode() in content] == [], file
    for name in ("running.json", "secret_key", "lock", "postgres/postgres.log", "valkey/valkey.log"):
        assert (upgraded.run.data / name).stat().st_mode & 0o777 == 0o600, name


def test_what_is_noted_for_commands_leaves_out_what_they_do_not_need(upgraded):
    noted = upgraded.run.servers()
    assert {"DATABASE_URL", "REDIS_URL", "LOOPGUARD_SECRET_KEY"} <= noted.keys()
    assert [name for name in noted if not re.match(r"LOOPGUARD_|DATABASE_URL$|REDIS_URL$", name)] == []
    assert not noted.keys() & {"LOOPGUARD_JUDGE_KEY", "PATH", "LOOPGUARD_GATEWAY_CREDENTIALS"}


def test_code_that_the_operator_runs_migrates_as_the_owner_and_writes_as_the_lesser_role(upgraded):
    upgraded.manage("shell", "-c", OPERATORS_CODE)
