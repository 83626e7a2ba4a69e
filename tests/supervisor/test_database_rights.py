"""One command makes two database roles; LoopGuard works as the lesser one."""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

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


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_the_lesser_role_detects_stops_and_audits(installed, tmp_path):
    events = [
        {"session": "s-1", "type": kind, "call_id": f"c{number}", **more}
        for number in range(6)
        for kind, more in (("call", {"tool": "search_web", "arguments": {"q": "again"}}), ("result", {"content": "0"}))
    ]  # fmt: skip
    key = {"Authorization": f"Bearer {installed.api_key}"}
    httpx.post(f"{installed.url}/api/v1/events", json={"events": events}, headers=key).raise_for_status()
    deadline = time.monotonic() + 60
    while not rows(installed.runtime, "SELECT 1 FROM detection_incident"):
        assert time.monotonic() < deadline, installed.run.log.read_text()
        time.sleep(0.1)
    installed.manage("prepare", "--new-secrets", "--result", str(tmp_path / "login.json"))
    login = json.loads((tmp_path / "login.json").read_text())
    with httpx.Client(
        base_url=installed.url, follow_redirects=True, headers={"Referer": installed.url}
    ) as browser:
        browser.get("/sign-in")
        post(browser, "/sign-in", username=login["username"], password=login["password"])
        post(browser, "/p/default/session/change", session="s-1", reason="enough")
        system_page = browser.get("/p/default/system").text
    assert re.search(r"Audit</b>.{0,120}Working", system_page, re.DOTALL)
    audited = rows(installed.runtime, "SELECT actor, action FROM detection_auditentry ORDER BY id")
    assert ("admin", "session.stop") in audited


def test_the_lesser_role_only_adds_to_the_audit(installed):
    only_adds_to_the_audit(installed.runtime, USER)
    even_the_owner_meets_triggers(installed.owner)
    assert "only triggers" not in installed.run.log.read_text()


UNRELEASED = (
    "CommandError: The data was made by an unreleased version of LoopGuard: start that version, or this one on "
    "a new data folder (LOOPGUARD_DATA) or an empty database.\n"
)
LATER = "CommandError: The data belongs to a later version of LoopGuard, and nothing was changed: start that version.\n"


@pytest.mark.promise("REL-30")
@pytest.mark.parametrize(
    ("change", "undo", "said"),
    [
        (
            "UPDATE django_migrations SET name = '0070_calls_blocked' WHERE (app, name) = ('detection', '0001_tables')",
            "UPDATE django_migrations SET name = '0001_tables' WHERE name = '0070_calls_blocked'",
            UNRELEASED,
        ),
        (
            "INSERT INTO django_migrations (app, name, applied) VALUES ('detection', '9999_later', now())",
            "DELETE FROM django_migrations WHERE name = '9999_later'",
            LATER,
        ),
    ],
    ids=["unreleased", "later"],
)
def test_data_of_another_version_is_rejected_in_one_sentence_and_stays_as_it_is(
    installed, change, undo, said
):
    state = "SELECT count(*), max(name), (SELECT count(*) FROM detection_auditentry) FROM django_migrations"
    with psycopg.connect(installed.owner, autocommit=True) as connection:
        connection.execute(change)
        before = rows(installed.owner, state)
        try:
            refused = installed.run_command("prepare", "--new-secrets")
        finally:
            after = rows(installed.owner, state)
            connection.execute(undo)
        assert (refused.returncode, refused.stderr) == (1, said)
        assert before == after
    installed.manage("prepare")


def test_the_lesser_role_recycles_the_log_of_a_full_disk(installed):
    with psycopg.connect(installed.runtime, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


@pytest.mark.parametrize("role", [USER, "loopguard_app"])
def test_no_role_connects_without_a_password(installed, role):
    with pytest.raises(psycopg.OperationalError, match="no password"):
        psycopg.connect(re.sub(r"//.*?@", f"//{role}@", installed.runtime), passfile=os.devnull).close()


@pytest.mark.promise("SEC-28")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_of_the_installation_has_the_owners_address(installed):
    for pid in installed.run.pids():
        assert installed.owner.encode() not in Path("/proc", str(pid), "environ").read_bytes()


@pytest.mark.promise("SEC-28")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_argument_of_a_process_and_no_file_that_others_may_read_contains_a_secret(installed):
    key = (installed.run.data / "secret_key").read_text().strip()
    note = (installed.run.data / "running.json").read_text()
    urls = [installed.owner, installed.runtime, json.loads(note)["environment"]["REDIS_URL"]]
    secrets = [key, installed.api_key, *(re.search(r":([^:@/]+)@", url)[1] for url in urls)]
    supervisor = json.loads(note)["pid"]
    started = descendants(supervisor)
    assert len(started) >= 7
    for pid in started:
        try:
            arguments = Path("/proc", str(pid), "cmdline").read_bytes().decode()
        except FileNotFoundError:  # it has ended meanwhile
            continue
        assert [secret for secret in secrets if secret in arguments] == [], arguments
    readable = [
        file for file in installed.run.data.rglob("*") if file.is_file() and file.stat().st_mode & 0o044
    ]
    assert not any("cluster" in file.parts for file in readable)
    for file in readable:
        content = file.read_bytes()
        assert [secret for secret in secrets if secret.encode() in content] == [], file
    for name in ("running.json", "secret_key", "lock", "postgres/postgres.log", "valkey/valkey.log"):
        assert (installed.run.data / name).stat().st_mode & 0o777 == 0o600, name


def test_what_is_noted_for_commands_leaves_out_what_they_do_not_need(installed):
    noted = installed.run.servers()
    assert {"DATABASE_URL", "REDIS_URL", "LOOPGUARD_SECRET_KEY"} <= noted.keys()
    assert [name for name in noted if not re.match(r"LOOPGUARD_|DATABASE_URL$|REDIS_URL$", name)] == []
    assert not noted.keys() & {"LOOPGUARD_JUDGE_KEY", "PATH", "LOOPGUARD_GATEWAY_CREDENTIALS"}


def test_code_that_the_operator_runs_migrates_as_the_owner_and_writes_as_the_lesser_role(installed):
    installed.manage("shell", "-c", OPERATORS_CODE)
