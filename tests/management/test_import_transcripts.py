"""Past runs of our own writing, in the forms of the programs that record them."""

import gzip
import json
import os
import sqlite3
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command

from detection.models import (
    AlertEvent,
    AuditEntry,
    Event,
    Incident,
    Project,
    Session,
    TranscriptImport,
)
from tests.support.transcripts import claude_code, cline, codex, copilot, gemini_cli, opencode, pi, qwen_code

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def project(db):
    return Project.objects.create(slug="default", name="Default")


def written(path, lines, *, packed=False):
    text = "\n".join(json.dumps(line) for line in lines).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def run(*arguments, capsys):
    call_command("import_transcripts", *map(str, arguments))
    return capsys.readouterr().out


def test_a_folder_of_claude_code_sessions_tells_what_loops_cost(tmp_path, capsys):
    (tmp_path / "project").mkdir()
    written(tmp_path / "project" / "a.jsonl", claude_code(["make test"] * 8))
    written(tmp_path / "b.jsonl.gz", claude_code([f"cat {n}" for n in range(8)], "77aa"), packed=True)
    said = run("claude-code", tmp_path, "--usd-per-million-tokens", "3", "15", capsys=capsys)

    looping, healthy = (Session.objects.get(external_id=name) for name in ("5d1c", "77aa"))
    assert (looping.call_count, looping.token_count, looping.model) == (8, 8 * 1050, "claude-x")
    assert float(looping.cost_usd) == pytest.approx(8 * (1000 * 3 + 50 * 15) / 1e6)
    assert (looping.state, looping.integration) == ("ended", "import/claude-code")
    assert looping.started_at.isoformat() == "2026-03-01T12:00:00+00:00"
    assert looping.last_event_at.isoformat() == "2026-03-01T12:00:40+00:00"
    assert not healthy.incidents.exists()
    incident = looping.incidents.first()
    assert "2 sessions, 16 calls" in said
    assert "in 1 sessions" in said
    assert f"/p/default/incidents/{incident.public_id}" in said
    assert "$0.0" in said
    listed = TranscriptImport.objects.get()
    assert (listed.state, listed.created_by, listed.sessions) == ("finished", "command line", 2)
    assert (listed.events, listed.prices is not None) == (Event.objects.count(), True)
    assert listed.files == [{"name": str(tmp_path), "bytes": listed.total_bytes}]
    assert listed.summary["worst"][0]["url"].endswith(incident.public_id)
    assert AuditEntry.objects.filter(action="import.create", subject=listed.public_id).exists()

    incident.label = "false_alarm"
    incident.save()
    again = run("claude-code", tmp_path, "--usd-per-million-tokens", "5", "25", capsys=capsys)
    assert "New events: 0." in again
    assert "0 loops in 0 sessions: 0 calls" in again


def test_sessions_get_the_tags_and_metadata_of_the_options(tmp_path, capsys):
    file = written(tmp_path / "a.jsonl", claude_code(["make test"] * 2))
    labels = ["--tag", "nightly", "--tag", "team-a", "--metadata", "customer=a=b"]
    run("claude-code", file, *labels, capsys=capsys)
    session, listed = Session.objects.get(), TranscriptImport.objects.get()
    for row in (session, listed):
        assert (row.tags, row.metadata) == (["nightly", "team-a"], {"customer": "a=b"})
    for wrong in (["--tag", "x" * 65], ["--metadata", "customer"]):
        with pytest.raises(CommandError):
            run("claude-code", file, *wrong, capsys=capsys)


def test_a_folder_whose_name_is_no_utf_8_is_listed_and_an_import_of_nothing_new_is_not(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"run\xff")
    folder.mkdir()
    written(folder / "a.jsonl", claude_code(["make test"] * 8))
    for _ in range(2):
        assert "1 sessions, 8 calls" in run("claude-code", folder, capsys=capsys)
    assert TranscriptImport.objects.get().files[0]["name"].endswith("run\\udcff")


def test_without_prices_the_report_says_how_to_name_them_and_nothing_is_logged(tmp_path, capsys):
    written(tmp_path / "a.jsonl", claude_code(["make test"] * 8))
    call_command("import_transcripts", "claude-code", str(tmp_path))
    said = capsys.readouterr()
    assert "imported without prices" in said.out
    assert "PUT /api/v1/prices, apply to them" in said.out
    assert "loop_detected" not in said.out + said.err


def test_an_import_alerts_nobody_and_leaves_nothing_to_do(tmp_path, capsys):
    run("claude-code", written(tmp_path / "a.jsonl", claude_code(["make test"] * 8)), capsys=capsys)
    assert Incident.objects.exists()
    assert not AlertEvent.objects.exists()
    assert not Incident.objects.exclude(status="ended").exists()
    assert not Session.objects.exclude(evaluated_seq=Session.objects.get().last_seq).exists()


def test_importing_again_adds_nothing_and_a_record_that_has_grown_continues(tmp_path, capsys):
    lines = list(claude_code(["make test"] * 8))
    file = written(tmp_path / "a.jsonl", lines[:12])
    run("claude-code", file, capsys=capsys)
    stored = Event.objects.count()
    assert "New events: 0." in run("claude-code", file, capsys=capsys)
    assert Event.objects.count() == stored
    run("claude-code", written(file, lines), capsys=capsys)
    assert Event.objects.count() == 17
    assert Session.objects.get().call_count == 8


def test_times_of_the_record_count_and_not_those_of_the_import(tmp_path, capsys):
    """Hours apart, the same successful call is no loop within its time to live."""
    lines = list(claude_code(["date"] * 5, step_seconds=700))
    for line in lines:
        for block in line.get("message", {}).get("content", []) if line["type"] == "user" else []:
            if isinstance(block, dict):
                block["content"] = line["timestamp"]
    run("claude-code", written(tmp_path / "a.jsonl", lines), capsys=capsys)
    assert not Incident.objects.exists()


def test_sub_agents_are_sessions_of_their_own(tmp_path, capsys):
    written(tmp_path / "a.jsonl", [
        *claude_code(["make"]), *claude_code(["ls"], agentId="a7f", isSidechain=True)
    ])  # fmt: skip
    run("claude-code", tmp_path, capsys=capsys)
    child = Session.objects.get(external_id="5d1c/a7f")
    assert (child.parent_external_id, child.call_count) == ("5d1c", 1)
    assert not Event.objects.filter(session_id=child.pk, type="message").exists()


def test_a_session_that_was_recorded_live_is_left_as_it_is(tmp_path, capsys, project):
    Session.objects.create(project=project, external_id="5d1c", integration="hooks/claude-code")
    said = run("claude-code", written(tmp_path / "a.jsonl", claude_code(["make"])), capsys=capsys)
    assert "1 sessions were recorded live" in said
    assert not Event.objects.exists()


CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
LISTS = {
    "openai": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "find it"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "nothing"},
    ],
    "anthropic": [
        {"role": "user", "content": [{"type": "text", "text": "find it"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "search", "input": {"q": "x"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "nothing"}]},
        ]},
    ],
    "responses": [
        {"role": "user", "content": [{"type": "input_text", "text": "find it"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": '{"q": "x"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "nothing"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", LISTS)
def test_message_lists_become_sessions(shape, tmp_path, capsys):
    written(tmp_path / "runs.jsonl", [LISTS[shape], {"messages": LISTS[shape]}])
    (tmp_path / "one.json").write_text(json.dumps(LISTS[shape]))
    run(shape, tmp_path, capsys=capsys)
    assert Session.objects.count() == 3
    for session in Session.objects.all():
        events = Event.objects.filter(session_id=session.pk).order_by("seq")
        assert [event.type for event in events] == ["message", "call", "result"]
        assert [event.content for event in events] == ["find it", None, "nothing"]
        assert (events[1].tool, json.loads(events[1].arguments)) == ("search", {"q": "x"})


def test_the_trace_form_is_accepted(tmp_path, capsys):
    lines = [
        {"source": "own", "session": name, "seq": seq, "ts": f"2026-03-01T12:00:0{seq}+00:00", "tool": "search",
         "arguments": {"q": "same"}, "result": "nothing", "is_error": False}
        for name in ("a", "b") for seq in range(6)
    ]  # fmt: skip
    assert "2 sessions, 12 calls" in run("trace", written(tmp_path / "t.jsonl", lines), capsys=capsys)


def test_what_cannot_be_read_is_named_and_the_rest_is_imported(tmp_path, capsys):
    (tmp_path / "broken.json").write_text('{"messages": 7}')
    (tmp_path / "fine.json").write_text(json.dumps(LISTS["openai"]))
    with pytest.raises(CommandError, match="1 files could not be read"):
        run("openai", tmp_path, capsys=capsys)
    assert Session.objects.count() == 1
    with pytest.raises(CommandError, match=r"has no \.jsonl or \.json file"):
        run("openai", tmp_path / "nowhere", capsys=capsys)


def test_a_project_has_to_be_named_if_there_are_several(tmp_path, capsys):
    Project.objects.create(slug="second", name="Second")
    file = written(tmp_path / "a.jsonl", claude_code(["make"]))
    with pytest.raises(CommandError, match="default, second"):
        run("claude-code", file, capsys=capsys)
    run("claude-code", file, "--project", "second", capsys=capsys)
    assert Session.objects.get().project.slug == "second"


def test_sessions_of_codex_are_what_happened(tmp_path, capsys):
    folder = tmp_path / "2026" / "03" / "01"
    folder.mkdir(parents=True)
    written(folder / "rollout-a.jsonl", codex(["make test"] * 8))
    written(folder / "rollout-b.jsonl", codex([f"cat {n}" for n in range(8)], "019a-2"))
    said = run("codex", tmp_path, "--usd-per-million-tokens", "3", "15", capsys=capsys)
    looping, healthy = (Session.objects.get(external_id=name) for name in ("019a-1", "019a-2"))
    assert (looping.call_count, looping.token_count, looping.model) == (8, 8 * 1050, "gpt-x")
    assert (looping.agent, looping.integration, looping.state) == ("codex", "import/codex", "ended")
    assert (looping.incidents.count(), healthy.incidents.count()) == (1, 0)
    events = Event.objects.filter(session=healthy)
    people = events.filter(type="message").exclude(role="program")
    assert [one.content for one in people] == ["Fix the tests"]
    assert (events.filter(type="result").count(), events.filter(type="call", cwd="/src").count()) == (8, 8)
    assert "2 sessions, 16 calls" in said
    assert "New events: 0." in run("codex", tmp_path, capsys=capsys)


@pytest.mark.parametrize(
    ("kind", "lines", "model", "cwd"),
    [
        ("gemini-cli", gemini_cli, "gemini-x", ""),
        ("copilot", copilot, "gpt-x", "/src"),
        ("pi", pi, "gpt-x", "/src"),
        ("qwen-code", qwen_code, "qwen-x", "/src"),
        ("cline", cline, "gpt-x", ""),
        ("opencode", None, "gpt-x", "/src"),
        ("kilo", None, "gpt-x", "/src"),
    ],
)
def test_sessions_of_each_agent_are_what_happened(tmp_path, kind, lines, model, cwd, capsys):
    (tmp_path / "chats").mkdir()
    runs = {"stuck": ["make test"] * 8, "healthy": [f"cat {n}" for n in range(8)]}
    for name, calls in runs.items():
        if lines is not None:
            written(
                tmp_path / "chats" / f"{name}.messages.json{'' if kind == 'cline' else 'l'}",
                lines(calls, name),
            )
    if lines is None:
        opencode(tmp_path / "opencode.db", runs)
    said = run(kind, tmp_path, "--usd-per-million-tokens", "3", "15", capsys=capsys)
    looping, healthy = (Session.objects.get(external_id=name) for name in ("stuck", "healthy"))
    assert (looping.call_count, looping.token_count, looping.model) == (8, 8 * 1050, model)
    assert (looping.agent, looping.integration, looping.state) == (kind, f"import/{kind}", "ended")
    assert (looping.incidents.count(), healthy.incidents.count()) == (1, 0)
    events = Event.objects.filter(session=healthy)
    people = events.filter(type="message").exclude(role="program")
    assert [one.content for one in people] == ["Fix the tests"]
    assert (events.filter(type="result").count(), events.filter(type="call", cwd=cwd).count()) == (8, 8)
    assert "2 sessions, 16 calls" in said
    assert "New events: 0." in run(kind, tmp_path, capsys=capsys)


def test_a_denied_call_of_copilot_has_an_error_as_its_result(tmp_path, capsys):
    run("copilot", written(tmp_path / "events.jsonl", copilot(["ls", "deny me"])), capsys=capsys)
    results = Event.objects.filter(type="result").order_by("seq")
    assert [(one.is_error, one.content) for one in results][1] == (True, "Denied by preToolUse hook")


AGENTS = {
    "claude-code": claude_code, "codex": codex, "gemini-cli": gemini_cli, "copilot": copilot, "pi": pi,
    "qwen-code": qwen_code, "cline": cline,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "lines"), [(kind, other) for kind in AGENTS for name, other in AGENTS.items() if name != kind]
)
def test_files_of_another_agent_are_an_error(tmp_path, kind, lines, capsys):
    file = written(tmp_path / "a.jsonl", lines(["ls"]))
    with pytest.raises(CommandError, match="1 files could not be read"):
        call_command("import_transcripts", kind, str(file))
    assert f"no line is one of a session of {kind}" in "".join(capsys.readouterr())
    assert not Session.objects.exists()


def test_a_database_with_other_tables_and_a_damaged_one_are_errors(tmp_path, capsys):
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as made, made:
        made.execute("CREATE TABLE notes (text)")
    whole = opencode(tmp_path / "whole.db", {"stuck": ["make test"] * 400}).read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[: len(whole) // 2])
    for name in ("other.db", "cut.db"):
        with pytest.raises(CommandError, match="1 files could not be read"):
            call_command("import_transcripts", "opencode", str(tmp_path / name))
        assert "is no database of a coding agent, or damaged" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW part AS SELECT id, message_id, session_id, load_extension('x') AS data FROM old_part",
        "CREATE VIEW part AS SELECT id, message_id, session_id, hex(zeroblob(9)) AS data FROM old_part",
        "CREATE TABLE part (id, message_id, session_id, data AS (hex(zeroblob(9))))",
        "CREATE VIRTUAL TABLE part USING fts5(id, message_id, session_id, data)",
    ],
)
def test_what_a_database_computes_is_not_read(tmp_path, capsys, statement):
    """A file that someone else made runs no code, and is not larger than it is."""
    file = opencode(tmp_path / "a.db", {"stuck": ["make test"]})
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("ALTER TABLE part RENAME TO old_part")
        made.execute(statement)
    with pytest.raises(CommandError, match="1 files could not be read"):
        call_command("import_transcripts", "opencode", str(file))
    assert "it has not the three tables of its program" in "".join(capsys.readouterr())


def test_what_opencode_has_not_yet_moved_into_its_database_is_read_too(tmp_path, capsys):
    file = opencode(tmp_path / "a.db", {"first": ["make test"]})
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE session SET directory = '/elsewhere'")
    writer.commit()
    run("opencode", file, capsys=capsys)
    writer.close()
    assert Event.objects.get(type="call").cwd == "/elsewhere"


def test_a_sub_agent_of_opencode_is_a_session_below_that_of_its_agent(tmp_path, capsys):
    file = opencode(tmp_path / "a.db", {"top": ["make test"], "sub": ["ls"]})
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("UPDATE session SET parent_id = 'top' WHERE id = 'sub'")
    run("opencode", file, capsys=capsys)
    sub = Session.objects.get(external_id="sub")
    assert sub.parent_external_id == "top"
    assert not sub.events.filter(type="message").exists()
