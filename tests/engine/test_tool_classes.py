"""What kind of tool it is, and whether a command alters something."""

from __future__ import annotations

import pytest

from detection.engine.results.answers import is_declined
from detection.engine.shell_commands import ShellLine
from detection.engine.tool_classes import SHIPPED_CLASSES, ToolTraits, shipped_traits
from detection.engine.writes import effect_of


@pytest.mark.parametrize(
    ("tool", "known"),
    [
        ("read_file", "read"),
        ("Read", "read"),
        ("mcp__files__read_file", "read"),
        ("functions.bash", "fallible"),
        ("WebFetch", "read"),
        ("BashOutput", "poll"),
        ("deploy_status", "poll"),
        ("update_reservation_flights", "change"),
        ("sendEmail", "message"),
        ("sleep", "wait"),
        ("preview_theme", "other"),
        ("concat_files", "other"),
        ("reader", "other"),
        ("catalogue", "other"),
        ("createfile", "change"),
        ("mcp__tracker__createIssue", "change"),
        ("add_issue_comment", "change"),
        ("API-post-page", "change"),
        ("fs_write", "change"),
        ("get_update_info", "other"),
        ("addressbook", "other"),
        ("todo_write", "other"),
        ("listfiles", "other"),
        ("read_bash", "poll"),
        ("task_list", "read"),
        ("str_replace_editor", "change"),
        ("x" * 5000, "other"),
        ("", "other"),
    ],
)
def test_a_class_is_named_by_whole_words(tool, known):
    assert shipped_traits(tool).tool_class == known


def test_no_tool_is_of_two_classes():
    names = [name for table in SHIPPED_CLASSES.values() for name in table]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "command",
    [
        "git add a.py && git status && git commit -m x",
        "echo hi > out.txt",
        "cat <<'EOF' > f.py\nx\nEOF",
        "sed -i 's/a/b/' f.py",
        "sudo apt-get -y install jq",
        "PYTHONPATH=. pip install x",
        "cd a; mkdir -p b",
        "git -C /repo push",
    ],
)
def test_these_commands_change_something(command):
    assert ShellLine({"command": command}).intent == "change"


@pytest.mark.parametrize(
    "command",
    [
        "git status && git diff --stat",
        "pytest -q 2>&1",
        "ls -la > /dev/null",
        "sed -n 1,40p f",
        "grep -rn 'rm -rf' .",
        "python -c 'a = 1 >= 2'",
        "",
    ],
)
def test_these_only_look(command):
    assert ShellLine({"command": command}).intent != "change"


def test_a_command_may_be_a_list_and_must_be_text():
    assert ShellLine(["rm", "x"]).intent == "change"
    assert ShellLine({"n": 1}).intent != "change"


@pytest.mark.parametrize(
    ("known", "arguments", "effect"),
    [
        ("change", None, "write"),
        ("change", {"command": "view", "path": "a.py"}, ""),
        ("change", {"command": "str_replace", "path": "a.py"}, "write"),
        ("read", {"command": "rm -rf /"}, ""),
        ("fallible", {"command": "rm -rf x"}, "command"),
        ("message", {"to": "ann"}, "message"),
        ("other", {"action_name": "create_event", "title": "x"}, "write"),
        ("other", {"action_name": "list_events"}, ""),
        ("other", {"method": "POST", "url": "/orders"}, "write"),
        ("other", {"method": "GET", "url": "/orders"}, ""),
        ("other", {"query": "UPDATE users SET name = 'x' WHERE id = 1"}, "write"),
        ("other", {"query": "  insert into logs values (1)"}, "write"),
        ("other", {"sql": "WITH x AS (SELECT 1) DELETE FROM logs"}, "write"),
        ("other", {"query": "SELECT update_time FROM logs"}, ""),
        ("other", {"query": "how do I create a table in excel"}, ""),
        ("poll", {"action": "delete"}, "poll"),
        ("other", {"action": "poll", "session": "7"}, "poll"),
    ],
)
def test_what_a_call_intends(known, arguments, effect):
    assert effect_of(ToolTraits(known), arguments) == effect


@pytest.mark.parametrize(
    ("line", "intent"),
    [
        ("git status --short", "look"),
        ("cd src && ls | head -5", "look"),
        ("sed -n 1,20p a.py", "look"),
        ("git diff && rm a.py", "change"),
        ("sleep 20; curl -s localhost/health", "sleep"),
        ("cd src && sleep 5", "sleep"),
        ("echo sleep 5", "look"),
        ("rm a.lock; sleep 1", "change"),
        ("pytest -q", ""),
        ("ls; pytest -q", ""),
        ("", "nothing"),
        ("gh issue create --title x", "send"),
        ("cd a && curl -s -X POST https://x.example/orders > out.json", "send"),
    ],
)
def test_what_a_shell_line_does(line, intent):
    assert ShellLine({"command": line}).intent == intent


def test_input_that_is_empty_only_polls():
    traits = shipped_traits("functions.write_stdin")
    assert effect_of(traits, {"session_id": 1, "chars": ""}) == "poll"
    assert effect_of(traits, {"session_id": 1, "chars": "y"}) == ""


def test_a_write_that_did_not_happen_has_no_receipt():
    assert is_declined("No replacement was performed: old_str did not appear in a.py")
    assert is_declined('{"success": false, "id": 7}')
    assert is_declined("File not created: the folder is missing")
    assert not is_declined("Successfully wrote file: errors.py")
    assert not is_declined("The file unknown.txt has been edited")
    assert not is_declined('{"success": true, "error": null, "id": 7}')
