"""A backup and its restore on an installation that works meanwhile: nothing acknowledged before it is lost or doubled."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg

from loopguard_site.layout import ROOT

from .running import Run, running_in

PATIENCE_SECONDS = 60


def manage(run: Run, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=ROOT, env={**run.environment, "LOOPGUARD_DATA": str(run.data), **environment}, capture_output=True,
        text=True, timeout=90, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def database(run: Run) -> psycopg.Connection[Any]:
    return psycopg.connect(run.servers()["LOOPGUARD_OWNER_DATABASE_URL"], autocommit=True)


class Agent:
    """Sends calls, and remembers which were acknowledged."""

    def __init__(self, ready: dict[str, str], key: str) -> None:
        self._client = httpx.Client(
            base_url=f"{ready['url']}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=20
        )
        self._numbers = itertools.count()
        self.acknowledged: list[str] = []
        self.refused: list[tuple[int, str, bool]] = []
        self.ended = threading.Event()

    def send(self) -> int:
        name = f"event-{next(self._numbers)}"
        event = {
            "id": name, "type": "call", "session": "busy", "call_id": name, "tool": "look", "arguments": {"n": name},
        }  # fmt: skip
        try:
            answer = self._client.post("/events", json={"events": [event]})
        except httpx.TransportError:
            return 0
        if answer.status_code == 202:
            self.acknowledged.append(name)
        else:
            code = answer.json()["code"] if answer.status_code == 503 else answer.text
            self.refused.append((answer.status_code, code, "Retry-After" in answer.headers))
        return answer.status_code

    def keep_sending(self) -> None:
        while not self.ended.is_set():
            self.send()
            time.sleep(0.02)

    def stored(self) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            more = {"cursor": cursor} if cursor else {}
            page = self._client.get("/sessions/busy/calls", params={"limit": 100, **more}).json()
            found += [call["call_id"] for call in page["items"]]
            if (cursor := page.get("next_cursor")) is None:
                return found


def policy_version(run: Run) -> int:
    with database(run) as connection:
        (number,) = connection.execute("SELECT max(policy_version) FROM detection_project").fetchone() or (0,)
        return int(number)


def packed_sessions(run: Run) -> list[str]:
    with database(run) as connection:
        rows = connection.execute(
            "SELECT s.external_id FROM detection_packedevents p"
            " JOIN detection_session s ON s.project_id = p.project_id AND s.id = p.session_id"
        )
        return [name for (name,) in rows]


def counted_calls(run: Run) -> int:
    with database(run) as connection:
        (number,) = connection.execute(
            "SELECT coalesce(sum(checks), 0) FROM detection_callcount"
        ).fetchone() or (0,)
        return int(number)


def wait_until_counted(run: Run, number: int) -> None:
    """Wait until statistics have so many calls; they are counted on the schedule."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := counted_calls(run)) != number:
        assert time.monotonic() < deadline, (found, number)
        time.sleep(0.5)


def test_a_backup_is_taken_and_restored_while_agents_work_and_moves_to_another_machine(run, tmp_path):
    file = tmp_path / "loopguard.backup"
    _, ready = run.start()
    agent = Agent(ready, ready["api_key"])
    assert [agent.send() for _ in range(20)] == [202] * 20
    before = [*agent.acknowledged]
    sender = threading.Thread(target=agent.keep_sending, daemon=True)
    sender.start()
    saved = manage(run, "backup", str(file))
    assert saved.returncode == 0, saved.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert not file.with_name(f"{file.name}.partial").exists()
    until = len(agent.acknowledged)  # each of these may be in it
    with database(run) as connection:  # as changes of settings do, which processes remember by this number
        connection.execute("UPDATE detection_project SET policy_version = policy_version + 5")
    changed = policy_version(run)
    restored = manage(run, "restore", str(file), "--yes")
    assert restored.returncode == 0, restored.stderr
    agent.ended.set()
    sender.join(PATIENCE_SECONDS)
    assert {*agent.refused} <= {(503, "unavailable", True)}
    assert policy_version(run) > changed
    stored = agent.stored()
    assert len(stored) == len({*stored})
    assert {*before} <= {*stored}
    # What came in between the backup and the restore is gone, as everybody expects; all that was acknowledged after it
    # is there.
    assert agent.send() == 202
    assert agent.acknowledged[-1] in agent.stored()
    assert until <= len(agent.acknowledged)

    wait_until_counted(run, len(agent.stored()))
    number = len(agent.stored())
    # Old sessions are packed; they are in it, too.
    old, until_day = datetime.now(UTC) - timedelta(days=20), datetime.now(UTC) - timedelta(days=10)
    with database(run) as connection:
        connection.execute("UPDATE detection_session SET last_event_at = %s, silence_check_at = NULL", [old])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "busy" not in packed_sessions(run):  # as soon as the index has it
        assert time.monotonic() < deadline
        packed = manage(run, "history", "pack", "--until", until_day.date().isoformat())
        assert packed.returncode == 0, packed.stderr
    assert len(agent.stored()) == number
    # On another server, whose transactions have lower numbers, counting goes on.
    with database(run) as connection:
        connection.execute("UPDATE detection_countingcursor SET seen_xid = 9000000000")
        connection.execute("UPDATE detection_indexingcursor SET seen_xid = 9000000000")
        connection.execute("UPDATE detection_session SET changed_xid = 8999999999")
    assert manage(run, "backup", str(file)).returncode == 0
    with running_in("lg-other-") as other:
        _, there = other.start()
        moved = manage(other, "restore", str(file), "--yes")
        assert moved.returncode == 0, moved.stderr
        moved_agent = Agent(there, ready["api_key"])  # the keys moved with the data
        moved_agent._numbers = itertools.count(1_000_000)
        assert packed_sessions(other) == ["busy"]
        assert len(moved_agent.stored()) == number
        assert [moved_agent.send() for _ in range(3)] == [202] * 3
        wait_until_counted(other, number + 3)
        assert packed_sessions(other) == []


def test_what_is_no_backup_changes_nothing(run, tmp_path):
    _, ready = run.start()
    agent = Agent(ready, ready["api_key"])
    assert agent.send() == 202
    file = tmp_path / "notes.txt"
    file.write_text("no backup")
    for wrong in (file, tmp_path / "missing"):
        refused = manage(run, "restore", str(wrong), "--yes")
        assert refused.returncode == 1
        assert "Nothing was changed." in refused.stderr
    assert manage(run, "backup", str(file)).returncode == 0
    unasked = manage(run, "restore", str(file))
    assert unasked.returncode == 1
    assert "add --yes" in unasked.stderr
    assert agent.stored() == agent.acknowledged
    nowhere = manage(run, "backup", str(tmp_path / "missing" / "file"))
    assert nowhere.returncode == 1


def test_a_damaged_backup_changes_nothing(run, tmp_path):
    _, ready = run.start()
    agent = Agent(ready, ready["api_key"])
    assert [agent.send() for _ in range(3)] == [202] * 3
    file, damaged = tmp_path / "whole", tmp_path / "damaged"
    assert manage(run, "backup", str(file)).returncode == 0
    whole = file.read_bytes()
    assert agent.send() == 202
    # Its list of contents is at the beginning, and whole.
    for data in (
        whole[: len(whole) * 9 // 10],
        whole[:-200],
        whole[: -len(whole) // 3] + bytes(len(whole) // 3),
    ):
        damaged.write_bytes(data)
        refused = manage(run, "restore", str(damaged), "--yes")
        assert refused.returncode == 1, refused.stdout
        assert "pg_restore" in refused.stderr
        assert "Nothing was changed." in refused.stderr
        assert agent.stored() == agent.acknowledged
    assert agent.send() == 202
    assert agent.stored() == agent.acknowledged


def test_programs_that_are_older_than_the_server_are_not_used(run, tmp_path):
    run.start()
    for name in ("initdb", "postgres", "pg_dump"):
        program = Path(tmp_path / name)
        program.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6'\n")
        program.chmod(0o755)
    refused = manage(run, "backup", str(tmp_path / "file"), LOOPGUARD_PG_BIN=str(tmp_path))
    assert refused.returncode == 1
    assert "is of version pg_dump (PostgreSQL) 9.6" in refused.stderr
