"""Two versions side by side on one database and one broker, under load: an upgrade loses no request.

The older one is the newest release where there is one, and the newer one a version that adds something to each thing
that processes leave for one another: columns, states, verdicts, tasks, messages.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg
import pytest
from psycopg import sql

from tests.support.load import Load
from tests.support.plain_http import PLAIN

from .balancer import Balancer
from .installation import ROOT, Installation, test_database_url

test_database_url.__test__ = False  # type: ignore[attr-defined]
pytestmark = pytest.mark.long

CODE = ("detection", "loopguard_site", "templates", "static", "manage.py")
_FROM = "LOOPGUARD_UPGRADE_FROM"
ENVIRONMENT = {
    "LOOPGUARD_MODE": "embedded",
    "LOOPGUARD_SECRET_KEY": secrets.token_hex(32),
    "LOOPGUARD_GUARD_SECONDS": "20",  # both versions start on a machine that is busy with that
}
MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("detection", "{before}")]
    operations = [migrations.AddField("{model}", "later", {field})]
"""
COLUMNS = {
    "session": "models.TextField(null=True)",
    "event": "models.TextField(null=True)",
    "project": "models.IntegerField(db_default=1)",
    "trackerstate": "models.IntegerField(db_default=1)",
}
"""Columns that the older version does not write; each in a migration, so that no transaction holds two tables."""
NEXT: dict[str, tuple[tuple[str, str], ...]] = {
    "detection/models/sessions.py": (
        ('    agent = models.CharField(max_length=128, blank=True, default="")\n', "    later = models.TextField(null=True)\n"),
    ),
    "detection/models/projects.py": (
        ("    name = models.CharField(", "    later = models.IntegerField(db_default=1)\n"),
    ),
    # A state has more in each of its parts.
    "detection/engine/memory.py": (
        ("    reaction: KeptReaction | None = None\n", '    later: str = "of a later version"\n'),
        ("    reuses: int | None = None\n", '    later: str = "as well"\n'),
        ('    before: str = ""\n    round: int = 0\n', "    later: int = 1\n"),
    ),
    "detection/engine/snapshot.py": (
        ("        list(map(_RECORD_FIELDS, run.records)),\n", '        {"later": 1},\n'),
        ('            "v": VERSION,\n', '            "later": [1],\n'),
    ),
    "detection/engine/family.py": (
        ("    has_begun: bool = False\n", "    later: int = 1\n"),
        ('                "v": VERSION,\n', '                "later": [1],\n'),
    ),
    "detection/models/stored_verdict.py": (('    stopped_by: str = ""\n', '    later: str = "of a later version"\n'),),
    "detection/stream/hints.py": (('    change: str = "changed"\n', '    later: str = "of a later version"\n'),),
    # Tasks have more arguments, and there are others.
    "detection/jobs.py": (
        ("            _send(EVALUATE, project_id, session_ids[first : first + SESSIONS_PER_TASK]", ', "later"'),
        ("    def send(session_ids: list[int]) -> None:\n", '        _send("detection.later", 1)\n'),
    ),
}  # fmt: skip
"""What is inserted after which text of which file."""


def next_version(folder: Path) -> Path:
    """Copy this version and add to it what a later one may."""
    for name in CODE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    for name, places in NEXT.items():
        file = folder / name
        text = file.read_text()
        for after, inserted in places:
            assert text.count(after) >= 1, (name, after)
            before = after.endswith("(")
            text = text.replace(after, inserted + after if before else after + inserted, 1)
        file.write_text(text)
    migrations = folder / "detection" / "migrations"
    *_, latest = sorted(file.stem for file in migrations.glob("0*.py"))
    for number, (model, field) in enumerate(COLUMNS.items()):
        name = f"999{number}_later"
        (migrations / f"{name}.py").write_text(MIGRATION.format(before=latest, model=model, field=field))
        latest = name
    return folder


def earlier_version(folder: Path) -> Path:
    """Unpack the newest release, or what the environment names; the test is skipped where there is none."""
    named = os.environ.get(_FROM) or newest_release()
    if not named:
        pytest.skip(
            f"nothing was released, or the history is not here; {_FROM} names a commit to upgrade from"
        )
    archive = git("archive", named, *CODE)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def newest_release() -> str:
    try:
        return git("tag", "--list", "v*", "--sort=-v:refname").decode().partition("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return ""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, timeout=60, capture_output=True).stdout


@pytest.fixture(params=["next", "release"])
def versions(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The folders of the older and the newer version."""
    other = tmp_path / "other"
    other.mkdir()
    return (ROOT, next_version(other)) if request.param == "next" else (earlier_version(other), ROOT)


@contextmanager
def database_of_its_own(url: str) -> Iterator[str]:
    """Create a database beside that of the suite, which must not be migrated."""
    name = f"upgrade_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    at = url.rpartition("@/")
    try:
        yield f"{at[0]}@/{name}?{at[2].partition('?')[2]}"
    finally:
        with psycopg.connect(url, autocommit=True) as administrator:
            administrator.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def decisions(session: str, key: str, *addresses: str) -> list[str]:
    """Make the same call at each address in turn; return the decisions."""
    found = []
    for number, address in enumerate(addresses):
        call = {"call_id": f"{session}-{number}", "tool": "search", "arguments": {"q": "again"}}
        answer = httpx.post(
            f"{address}/api/v1/guard", json={"session": session, "calls": [call]},
            headers={"Authorization": f"Bearer {key}"}, timeout=30, verify=PLAIN,
        )  # fmt: skip
        found.append(answer.raise_for_status().json()["decision"])
    return found


@pytest.mark.promise("REL-43")
def test_an_upgrade_under_load_loses_no_request(db, versions, tmp_path):
    older, newer = versions
    with database_of_its_own(test_database_url()) as url:
        (tmp_path / "old").mkdir()
        (tmp_path / "new").mkdir()
        environment = {**ENVIRONMENT, "DATABASE_URL": url}
        old = Installation(os.environ["REDIS_URL"], tmp_path / "old", **environment)
        new = Installation(os.environ["REDIS_URL"], tmp_path / "new", **environment)
        old.root, new.root = older, newer
        try:
            upgrade(old, new, url)
        finally:
            new.stop()
            old.stop()


def upgrade(old: Installation, new: Installation, url: str) -> None:
    key = old.prepare()
    with psycopg.connect(url, autocommit=True) as database:
        # Nothing can be rebuilt from what is stored, so each version has to read the states of the other.
        database.execute("UPDATE detection_project SET stores_payloads = false")
    old_worker, old_beat, old_web = old.start_worker(), old.start_beat(), old.start_web()
    balancer = Balancer([old.url])
    with balancer.looking(), Load(balancer, key) as load:
        load.work_on()
        with psycopg.connect(url) as reader, ThreadPoolExecutor(1) as pool:
            # A long report keeps the change from its lock: it lets requests pass, and is tried again.
            reader.execute("SELECT count(*) FROM detection_session")
            preparing = pool.submit(new.prepare)
            load.work_on(20)
            reader.rollback()
            preparing.result()
        load.work_on()
        new_worker = new.start_worker()
        new.start_beat()
        new.start_web()
        balancer.addresses.append(new.url)
        load.work_on(20)
        for first, second in ((old.url, new.url), (new.url, old.url)):
            both = decisions(f"of-both-{first}", key, first, second, first, second, first)
            assert both == ["allow", "allow", "allow", "block", "block"]
        # One task after the other may reach either worker: neither knows all of them.
        for process in (old_beat, old_worker):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            load.work_on()
        balancer.addresses.remove(old.url)  # the older version need not be one that says that it ends
        load.work_on()
        old_web.send_signal(signal.SIGTERM)
        old_web.wait(60)
        load.work_on(20)
    assert new_worker.poll() is None
    logs = old.logs() + new.logs()
    # On a machine that is busy with starts, one may wait for a lock in vain, and be asked to come again.
    assert {*load.unanswered} <= {503}, logs
    with psycopg.connect(url) as database:
        load.check_counts(database)
        assert count(database, "SELECT count(*) FROM detection_quarantinedevent") == 0, logs
        assert (
            count(database, "SELECT count(*) FROM detection_incident WHERE session_name LIKE 'of-both-%'")
            == 2
        )


def count(database: psycopg.Connection[Any], query: LiteralString) -> int:
    row = database.execute(query).fetchone()
    return int(row[0]) if row else 0
