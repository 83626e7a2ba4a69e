"""What kind of tool it is, and whether a command alters something."""

from __future__ import annotations

import pytest

from detection.engine.shell_commands import changes_something
from detection.engine.tool_classes import SHIPPED_CLASSES, shipped_traits


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
    assert changes_something("fallible", {"command": command})


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
    assert not changes_something("fallible", {"command": command})


def test_a_changing_tool_needs_no_command_and_a_reader_has_none():
    assert changes_something("change", None)
    assert not changes_something("read", {"command": "rm -rf /"})
    assert changes_something("fallible", ["rm", "x"])
    assert not changes_something("fallible", {"n": 1})
