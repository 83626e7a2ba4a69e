"""Everything that libpq reads in the address of a database works in DATABASE_URL."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql

from loopguard_site import env
from tests.support.plain_http import PLAIN

from .installation import ROOT, Installation

pytestmark = pytest.mark.servers
SERVER = os.environ["DATABASE_URL"]
SETTINGS = {"LOOPGUARD_MODE": "embedded", "LOOPGUARD_SECRET_KEY": secrets.token_hex(32)}
READ = """
import django, json
django.setup()
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT current_user, current_schema(), current_setting('application_name'),"
        " current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('work_mem')")
    print(json.dumps([*cursor.fetchone(), connection.get_connection_params()["connect_timeout"]]))
"""
"""What a process of LoopGuard gets from its connection."""


def address(query: str, database: str = "") -> str:
    parts = urlsplit(SERVER)
    path = f"/{database}" if database else parts.path
    return parts._replace(path=path, query="&".join(filter(None, (parts.query, query)))).geturl()


def seen(url: str, **environment: str) -> list[object]:
    surroundings = {
        **os.environ,
        **SETTINGS,
        "DJANGO_SETTINGS_MODULE": "loopguard_site.settings",
        "DATABASE_URL": url,
    }
    done = subprocess.run(
        [sys.executable, "-c", READ],
        cwd=ROOT, env=surroundings | environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.fixture
def database() -> Iterator[str]:
    name = f"address_{secrets.token_hex(4)}"
    with psycopg.connect(SERVER, autocommit=True) as administrator:
        administrator.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        administrator.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_settings_of_the_server_in_the_address_come_on_top_of_those_of_loopguard():
    user = seen(address(""))
    assert user[1:] == ["public", "loopguard", "15s", "5s", "16MB", 5]
    options = quote("-csearch_path=pg_catalog -c statement_timeout=9000 -cwork_mem=4MB", safe="")
    query = (
        f"options={options}&application_name=team%20one&connect_timeout=3&sslmode=prefer&keepalives_idle=9"
    )
    assert seen(address(query)) == [user[0], "pg_catalog", "team one", "9s", "5s", "4MB", "3"]


def test_services_password_files_and_several_hosts_work(tmp_path):
    known = psycopg.conninfo.conninfo_to_dict(SERVER)
    expected = seen(SERVER)
    service = tmp_path / "services.conf"
    service.write_text("[lg]\n" + "".join(f"{name}={value}\n" for name, value in known.items()))
    assert seen("postgresql://?service=lg", PGSERVICEFILE=str(service)) == expected

    password = known.pop("password", "")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"*:*:*:*:{password}\n")
    passwords.chmod(0o600)
    known["dbname"] = known.get("dbname", "postgres")
    host, port = known.pop("host"), known.pop("port", "5432")
    rest = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in known.items())
    rest += f"&passfile={quote(str(passwords), safe='')}"
    for hosts, ports in (
        (f"/nowhere,{host}", port),
        (f"/nowhere,{host},127.0.0.1", f"{port},{port},1"),
        (f"{host},/nowhere", f"{port},1"),
    ):
        url = f"postgresql://?host={quote(hosts, safe=',')}&port={ports}&{rest}"
        assert seen(url)[:4] == expected[:4], hosts


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:secret@h/d", "must start with postgresql://"),
        ("postgresql://u:secret@h/d?serch_path=x", "has an unknown parameter: serch_path"),
        ("postgresql://u:se%cret@h/d", "with % and the hexadecimal code"),
        ("postgresql://u:secret@[h/d", "must "),
    ],
)
def test_an_address_that_cannot_be_read_is_one_sentence_without_the_password(url, message):
    surroundings = {**os.environ, **SETTINGS, "DATABASE_URL": url}
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("LoopGuard cannot start: DATABASE_URL ")
    assert message in done.stderr
    assert "cret" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["", "postgresql://", "postgresql:///", "postgres://u@h"])
def test_the_database_is_called_loopguard_unless_it_is_named(url):
    assert env.database_parameters(url)["NAME"] == "loopguard"


def test_an_installation_keeps_to_the_schema_of_its_address(database, tmp_path):
    schema = "Team one"
    with psycopg.connect(address("", database), autocommit=True) as administrator:
        administrator.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        url = address("options=" + quote('-csearch_path="Team\\ one"', safe=""), database)
        result = tmp_path / "prepared.json"
        subprocess.run(
            [sys.executable, "manage.py", "prepare", "--result", str(result)],
            cwd=ROOT, env={**os.environ, **SETTINGS, "DATABASE_URL": url}, check=True, timeout=180,
        )  # fmt: skip
        key = json.loads(result.read_text())["api_key"]
        running = Installation(os.environ["REDIS_URL"], tmp_path, DATABASE_URL=url, **SETTINGS)
        try:
            running.start_web()
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=running.url, headers=headers, timeout=10, verify=PLAIN) as client:
                call = {"tool": "search_web", "arguments": {"q": "x"}}
                assert (
                    client.post("/api/v1/guard", json={"session": "s-1", "calls": [call]}).status_code == 200
                )
                event = {"type": "call", "session": "s-2", "tool": "t"}
                assert client.post("/api/v1/events", json=event).status_code == 202
                assert client.get("/readyz").status_code == 200
        finally:
            running.stop()
        count = sql.SQL("SELECT count(*) FROM {}.detection_event").format(sql.Identifier(schema))
        assert administrator.execute(count).fetchone() == (2,)
        places = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'detection_%' OR tablename LIKE 'auth_%'"
        assert administrator.execute(places).fetchall() == [(schema,)]
