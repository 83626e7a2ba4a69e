"""Two database roles on a server that is not LoopGuard's own: an owner without privileges, and the role that runs it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql

from tests.support.audit_rights import even_the_owner_meets_triggers, only_adds_to_the_audit

from .installation import ROOT, Installation, looping_events, wait_until

pytestmark = pytest.mark.servers
OWNER = "LOOPGUARD_OWNER_DATABASE_URL"
_SERVER = urlsplit(os.environ["DATABASE_URL"])
_SURROUNDINGS = {
    "LOOPGUARD_MODE": "embedded",
    "LOOPGUARD_BOOTSTRAP": "0",
    "LOOPGUARD_SECRET_KEY": secrets.token_urlsafe(40),
}


@dataclass(frozen=True)
class Place:
    """A new database of an owner who may neither make roles nor databases, and the name of a role to run as."""

    owner: str
    role: str
    folder: Path

    def url(self, user: str) -> str:
        host = _SERVER.netloc.rpartition("@")[2]
        return _SERVER._replace(netloc=f"{user}:{self.owner}@{host}", path=f"/{self.owner}").geturl()

    def manage(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        surroundings = {
            **os.environ,
            **_SURROUNDINGS,
            "DATABASE_URL": self.url(self.role),
            **environment,
        }
        return subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def prepare(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.manage("prepare", "--result", str(self.folder / "prepared.json"), **environment)

    def make_role(self) -> None:
        _as_administrator(
            "CREATE ROLE {} LOGIN PASSWORD {}", sql.Identifier(self.role), sql.Literal(self.owner)
        )


def _as_administrator(statement: str, *parts: sql.Composable) -> None:
    with psycopg.connect(_SERVER.geturl(), autocommit=True) as administrator:
        administrator.execute(sql.SQL(statement).format(*parts))


@contextlib.contextmanager
def new_place(folder: Path) -> Iterator[Place]:
    with psycopg.connect(_SERVER.geturl()) as database:
        may = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        if database.execute(may).fetchone() != (True,):
            pytest.skip("DATABASE_URL is of a role that may not make roles and databases.")
    name = f"rights_{secrets.token_hex(4)}"
    place = Place(name, f"{name}_app", folder)
    owner, role = sql.Identifier(name), sql.Identifier(place.role)
    _as_administrator("CREATE ROLE {} LOGIN PASSWORD {}", owner, sql.Literal(name))
    _as_administrator("CREATE DATABASE {} OWNER {}", owner, owner)
    yield place
    _as_administrator("DROP DATABASE {} WITH (FORCE)", owner)
    _as_administrator("DROP ROLE {}", owner)
    _as_administrator("DROP ROLE IF EXISTS {}", role)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with new_place(tmp_path) as place:
        yield place


@dataclass(frozen=True)
class Prepared:
    """A place whose owner has prepared it: first without the role to run as, then with it."""

    place: Place
    without_role: subprocess.CompletedProcess[str]
    with_role: subprocess.CompletedProcess[str]
    api_key: str


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    if os.environ.get("LOOPGUARD_TEST_SERVERS") == "embedded":
        pytest.skip("runs on servers of yours; those of `up` have tests/supervisor/test_database_rights.py")
    with new_place(tmp_path_factory.mktemp("prepared")) as place:
        owner = {OWNER: place.url(place.owner)}
        without_role = place.prepare(**owner)
        place.make_role()
        with_role = place.prepare(**owner)
        key = json.loads((place.folder / "prepared.json").read_text())["api_key"]
        yield Prepared(place, without_role, with_role, key)


def test_an_owner_without_privileges_needs_the_role_before_it_can_prepare(prepared):
    assert prepared.without_role.returncode == 1
    assert f'The role "{prepared.place.role}" of DATABASE_URL does not exist' in prepared.without_role.stderr
    assert (prepared.with_role.returncode, prepared.with_role.stderr) == (0, "")


@pytest.mark.promise("SEC-24")
def test_the_role_can_only_add_to_the_audit(prepared):
    place = prepared.place
    only_adds_to_the_audit(place.url(place.role), place.owner)
    even_the_owner_meets_triggers(place.url(place.owner))


def test_the_role_detects_stops_and_audits(prepared, tmp_path):
    place = prepared.place
    running = Installation(
        os.environ["REDIS_URL"], tmp_path, DATABASE_URL=place.url(place.role), **_SURROUNDINGS
    )
    try:
        running.start_worker()
        running.start_web()
        with (
            httpx.Client(
                base_url=running.url, headers={"Authorization": f"Bearer {prepared.api_key}"}, timeout=10
            ) as client,
            psycopg.connect(place.url(place.role), autocommit=True) as database,
        ):
            client.post("/api/v1/events", json={"events": looping_events("run")}).raise_for_status()
            found = "SELECT 1 FROM detection_incident"
            assert wait_until(lambda: database.execute(found).fetchone() is not None), running.logs()
            client.post("/api/v1/sessions/run/stop", json={"reason": "enough"}).raise_for_status()
            audited = database.execute("SELECT action FROM detection_auditentry").fetchall()
    finally:
        running.stop()
    assert ("session.stop",) in audited


def test_partitions_come_and_go_without_the_right_to_make_or_drop_a_table(prepared):
    place = prepared.place
    with psycopg.connect(place.url(place.owner), autocommit=True) as owner:
        for day in (700, 707):
            owner.execute(
                f"CREATE TABLE detection_event_{day} PARTITION OF detection_event"
                f" FOR VALUES FROM ({day << 32}) TO ({(day + 7) << 32})"
            )
        owner.execute(
            "INSERT INTO detection_event (project_id, session_id, seq, type) VALUES (1, %s, 1, 'call')",
            [707 << 32],
        )
        newest = "SELECT max(relname) FROM pg_class WHERE relname ~ '^detection_event_[0-9]{5}$'"
        removed = owner.execute(newest).fetchone()[0]
        owner.execute(f"DROP TABLE {removed}")
        done = place.manage(
            "shell", "-c", "from detection.services.retention import retention; retention.housekeeping()"
        )
        assert done.returncode == 0, done.stderr
        tables = {name for (name,) in owner.execute("SELECT relname FROM pg_class WHERE relkind = 'r'")}
        assert removed in tables
        assert "detection_event_700" not in tables
        assert "detection_event_707" in tables  # it holds something


@pytest.mark.long
def test_a_single_role_works_and_is_warned_of_its_rights(place):
    prepared = place.prepare(DATABASE_URL=place.url(place.owner))
    assert prepared.returncode == 0
    assert f'LoopGuard runs as "{place.owner}", which has permission to alter the audit' in prepared.stderr
    even_the_owner_meets_triggers(place.url(place.owner))


@pytest.mark.promise("SEC-28")
def test_the_lesser_role_cannot_prepare_and_the_error_names_the_variable_to_set(place):
    place.make_role()
    refused = place.prepare()
    assert refused.returncode == 1
    assert "permission denied for schema public. If the role of DATABASE_URL" in refused.stderr
    assert OWNER in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.long
def test_an_owner_that_may_make_roles_makes_the_lesser_one_and_sets_its_password(place):
    administrator = _SERVER._replace(path=f"/{place.owner}").geturl()
    assert place.prepare(**{OWNER: administrator}).returncode == 0
    with psycopg.connect(place.url(place.role)) as database:
        assert database.execute("SELECT current_user").fetchone() == (place.role,)
    other = place.url(place.role).replace(f":{place.owner}@", ":another@")
    assert place.prepare(DATABASE_URL=other, **{OWNER: administrator}).returncode == 0
    only_adds_to_the_audit(other, str(_SERVER.username))
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(place.url(place.role)).close()


def test_owner_and_lesser_role_must_differ(place):
    refused = place.prepare(DATABASE_URL=place.url(place.owner), **{OWNER: place.url(place.owner)})
    assert refused.returncode == 1
    assert (
        f"{OWNER} names the role that owns the tables; DATABASE_URL must name another role." in refused.stderr
    )
