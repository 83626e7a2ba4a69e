"""`loopguard import --find`: past runs of coding agents, found where they keep them and uploaded."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from detection.integrations.opencode_files import lines_of_database
from loopguard_client import credentials
from loopguard_client.command_line import main
from loopguard_client.imports import FOLDERS, upload
from loopguard_client.transport import Response
from tests.support.transcripts import claude_code, cline, codex, copilot, gemini_cli, opencode, pi, qwen_code

SECONDS = 60


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, server) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*(one.variable for one in FOLDERS if one.variable), *credentials.ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    credentials.Credentials(server.url, server.key).store()
    return tmp_path


def write(file: Path, lines: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(line) for line in lines))


def wait_for(server, kind: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        made = next(one for one in server.get("/imports")["items"] if one["kind"] == kind)
        if made["state"] not in ("waiting", "running"):
            return made
        time.sleep(0.2)
    raise AssertionError("the import did not end")


def test_the_files_of_all_agents_are_found_and_imported(home, server, name, capsys):
    calls = ["make test"] * 8
    write(home / ".claude/projects/src/a.jsonl", claude_code(calls, f"{name}-claude"))
    write(home / ".codex/sessions/2026/03/01/rollout-a.jsonl", codex(calls, f"{name}-codex"))
    write(home / ".codex/sessions/2026/03/01/notes.jsonl", [{"no": "session"}])
    write(home / ".gemini/tmp/src/chats/session-a.jsonl", gemini_cli(calls, f"{name}-gemini"))
    write(home / ".copilot/session-state/a/events.jsonl", copilot(calls, f"{name}-copilot"))
    write(home / ".pi/agent/sessions/--src--/a.jsonl", pi(calls, f"{name}-pi"))
    write(home / ".qwen/projects/src/chats/a.jsonl", qwen_code(calls, f"{name}-qwen"))
    write(home / ".cline/data/sessions/a/a.messages.json", cline(calls, f"{name}-cline"))
    write(home / ".cline/data/sessions/a/a.json", [{"no": "session"}])
    opencode(home / ".local/share/opencode/opencode.db", {f"{name}-opencode": calls})
    opencode(home / ".local/share/kilo/kilo.db", {f"{name}-kilo": calls})
    assert main(["import", "--find", "--yes"]) == 0
    said = capsys.readouterr().out
    for kind in [one.kind for one in FOLDERS]:
        assert f"{kind}: 1 file, " in said
        made = wait_for(server, kind)
        assert (made["state"], made["error"], made["sessions"]) == ("finished", None, 1)
        assert made["links"]["import"] in said
        calls_of_session = server.calls(f"{name}-{kind.split('-')[0]}")
        assert [one["agent"] for one in calls_of_session] == [kind] * 8


def test_nothing_is_uploaded_without_an_answer(home, server, name, capsys, monkeypatch):
    write(home / ".codex/sessions/rollout-a.jsonl", codex(["ls"], name))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["import", "--find", "--only", "codex"]) == 1
    shown = capsys.readouterr()
    assert "codex: 1 file, " in shown.out
    assert "Add --yes" in shown.err


def test_a_home_without_files_is_an_error(capsys):
    assert main(["import", "--find"]) == 1
    assert "No session files were found" in capsys.readouterr().err


def test_a_server_that_is_away_is_an_error(home, name, capsys):
    write(home / ".codex/sessions/rollout-a.jsonl", codex(["ls"], name))
    credentials.Credentials("http://127.0.0.1:9", "lg_x").store()
    assert main(["import", "--find", "--yes"]) == 1
    assert "No server listens" in capsys.readouterr().err


def test_nothing_but_messages_of_a_database_leaves_the_machine(home, name, monkeypatch):
    """OpenCode keeps credentials in the same file."""
    file = opencode(home / ".local/share/opencode/opencode.db", {name: ["ls"]})
    sent: list[bytes] = []

    def keep(self, path, archive, size, media_type, *, seconds):
        sent.append(archive.read())
        return Response(202, {}, 0)

    monkeypatch.setattr("loopguard_client.imports.Transport.upload", keep)
    upload(credentials.Credentials("http://127.0.0.1:9", "lg_x"), "opencode", [file], home / ".local/share")
    with zipfile.ZipFile(io.BytesIO(sent[0])) as packed:
        assert packed.namelist() == ["opencode/opencode.jsonl"]
        text = packed.read("opencode/opencode.jsonl").decode()
    assert ("sk-secret" in text, '"command": "ls"' in text) == (False, True)
    ours = [json.loads(line) for line in lines_of_database(file, lambda: None)]
    assert [json.loads(line) for line in text.splitlines()] == ours  # as the server reads the database itself
