"""How values read: hidden characters shown, differences by path, spans."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detection.console import formatting
from detection.console.sessions import differences
from detection.engine import durations
from detection.templatetags import console

ROOT = Path(__file__).parents[2]
DURATIONS = ROOT / "tests/browser/durations.json"


@pytest.mark.promise("SEC-13")
@pytest.mark.parametrize(
    "character", ["\u202e", "\u2066", "\u200b", "\ufeff", "\u00ad", "\x00", "\x1b", "\U000e0041", "\u2028"]
)
def test_characters_that_hide_or_turn_text_are_shown(character):
    shown = formatting.visible(f"safe{character}txt")
    assert character not in shown
    assert len(shown) > len("safetxt")


def test_blocks_keep_their_line_breaks_and_show_the_rest():
    assert formatting.visible_block("a\n\tb\x07") == "a\n\tb⟦U+0007⟧"
    assert formatting.visible("a\nb") == "a⏎b"


def test_letters_of_other_scripts_are_left_alone():
    assert formatting.visible("Überprüfung 日本語 עברית مرحبا 👍") == "Überprüfung 日本語 עברית مرحبا 👍"


def test_differences_name_the_path_and_both_values():
    (change,) = differences.between('{"q":"a","deep":{"limit":10}}', '{"deep":{"limit":20},"q":"a"}')
    assert change.path == "deep.limit"
    assert change.parts == (("old", "10"), ("new", "20"))


def test_identical_arguments_in_another_order_do_not_differ():
    assert differences.between('{"a":1,"b":2}', '{"b":2,"a":1}') == ()


def test_words_inside_a_text_are_compared_one_by_one():
    (change,) = differences.between('{"q":"reset admin password"}', '{"q":"reset user password"}')
    assert change.parts == (("same", "reset"), ("old", "admin"), ("new", "user"), ("same", "password"))


@pytest.mark.promise("SEC-19")
def test_differences_of_huge_arguments_are_bounded():
    old = "[" + ",".join(str(n) for n in range(5000)) + "]"
    new = "[" + ",".join(str(n + 1) for n in range(5000)) + "]"
    assert len(differences.between(old, new)) == differences.MAX_PATHS + 1


def test_times_in_words_are_those_of_the_table():
    for name, cases in json.loads(DURATIONS.read_text()).items():
        found = [(seconds, getattr(durations, name)(seconds)) for seconds, _ in cases]
        assert found == [tuple(case) for case in cases], name


def test_a_moment_is_written_from_now_or_with_its_year():
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    cases = (
        (-90, True, "in 1 min"),
        (90, False, "01 Mar 11:58:30 UTC"),
        (86400 * 90, False, "01 Dec 2025 12:00:00 UTC"),
    )
    for seconds, is_relative, words in cases:
        assert formatting.moment(now - timedelta(seconds=seconds), now, is_relative=is_relative) == words


def test_nothing_else_writes_numbers_with_units_of_time():
    units = r" (?:ms|s|sec|min|h|d)\b"
    for pattern, files in (
        (r"\}\}" + units, (ROOT / "templates").rglob("*.html")),
        (r"\$\{[^}]*\}" + units, (ROOT / "static/js").glob("*.js")),
        (r"\{[^}\"']*\} (?:ms|s|min)\b", (ROOT / "detection").rglob("*.py")),
    ):
        for file in files:
            if file.stem != "durations":
                lines = re.findall(pattern, file.read_text())
                assert [line for line in lines if "SELECT" not in line] == [], file.name


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("preset:standard", "preset standard"),
        ("environment", "environment"),
        ("agent:triage", "agent triage"),
        ("model:a%2Fb/org/gpt-5", "model a/b / org/gpt-5"),
        ("tool:search_*", "tools search_*"),
        ("session", "session"),
    ],
)
def test_sources_of_settings(source, words):
    assert formatting.source_name(source) == words


def test_a_difference_of_spaces_alone_is_visible():
    old, new = '{"old_string": "def send("}', '{"old_string": "def   send("}'
    (found,) = differences.between(old, new)
    assert found.parts == (("same", "def"), ("new", "␣␣"), ("same", "send("))


def test_the_head_of_a_table_has_classes_and_words_for_screen_readers_only():
    head = console.columns("Name", "num hide-s: <Cost>", "off-screen: Actions")
    assert head == (
        '<thead><tr><th scope="col">Name</th><th scope="col" class="num hide-s">&lt;Cost&gt;</th>'
        '<th scope="col"><span class="off-screen">Actions</span></th></tr></thead>'
    )


def test_a_table_without_rows_says_so_over_its_width():
    assert console.empty_row(3, "No <keys>") == (
        '<tr><td colspan="3"><div class="empty"><b>No &lt;keys&gt;</b></div></td></tr>'
    )
    assert "<p>Create one.</p></div>" in console.empty_row(3, "No keys", "Create one.")
