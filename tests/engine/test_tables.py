"""The examples of every row of the tables, and what patterns may be."""

from __future__ import annotations

import json
import re
import re._parser as regex_parser
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.engine import directories, tables
from detection.engine.arguments import essential
from detection.engine.calls import Call
from detection.engine.detectors.talk import is_announcement
from detection.engine.dispatching import dispatched
from detection.engine.identity import Keyer
from detection.engine.open_calls import key_and_arguments
from detection.engine.provider_trouble import limit_and_trouble
from detection.engine.results import answers, masking, normalise
from detection.engine.results.json_text import JsonText
from detection.engine.shell_commands import ShellLine
from detection.engine.spawning import prompts_of, starts_agents
from detection.engine.substrings import contains_any
from detection.engine.tool_classes import shipped_traits
from detection.engine.tool_verbs import (
    acts_on_page,
    intent_of,
    leads_on,
    moves_on,
    opens_file,
    what_was_made,
    words_of,
)
from detection.engine.writes import effect_of
from tests.engine.play import Player

ALL = sorted(str(path.relative_to(tables.FOLDER))[:-5] for path in tables.FOLDER.rglob("*.toml"))
ROWS = [(name, row) for name in ALL for row in tables.table(name)]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(ROWS)]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=IDS)
def test_every_row_has_an_example_on_both_sides(name, row):
    assert row["match"]
    assert row["no_match"]


def repeats(parsed, inside=False):
    """Yield whether a repetition without an end lies in another repetition."""
    for operator, value in parsed:
        if operator in (regex_parser.MAX_REPEAT, regex_parser.MIN_REPEAT, regex_parser.POSSESSIVE_REPEAT):
            _, most, inner = value
            yield inside and most is regex_parser.MAXREPEAT
            yield from repeats(inner, inside=True)
        elif operator is regex_parser.SUBPATTERN:
            yield from repeats(value[3], inside)
        elif operator is regex_parser.BRANCH:
            for branch in value[1]:
                yield from repeats(branch, inside)
        elif operator in (regex_parser.ASSERT, regex_parser.ASSERT_NOT):
            yield from repeats(value[1], inside)


@pytest.mark.parametrize(("name", "row"), ROWS, ids=IDS)
def test_no_pattern_repeats_without_an_end_inside_a_repetition(name, row):
    for column in ("pattern", "text", "frame"):
        if column in row:
            assert not any(repeats(regex_parser.parse(row[column])))


SAYS = {
    "begins_failed": lambda pattern, text: pattern.match(text),
    "failure": lambda pattern, text: pattern.match(text),
    "refusal": lambda pattern, text: pattern.match(text),
    "rejection": lambda pattern, text: pattern.match(text),
    "ends_failed": lambda pattern, text: pattern.search(text),
    "unmade": lambda pattern, text: pattern.match(text),
    "pending": lambda pattern, text: pattern.search(text.lower()),
    "begins_pending": lambda pattern, text: pattern.match(text.lower()),
    "acknowledged": lambda pattern, text: pattern.fullmatch(text),
    "picture": lambda pattern, text: pattern.fullmatch(text),
    "empty": lambda pattern, text: pattern.fullmatch(text),
    "nothing": lambda pattern, text: pattern.search(text),
    "declined": lambda pattern, text: pattern.search(text),
    "done": lambda pattern, text: pattern.match(text),
}


@pytest.mark.parametrize("row", tables.table("answers"))
def test_answers_match_their_examples(row):
    read, pattern = SAYS[row["says"]], re.compile("(?i)" + row["pattern"])
    assert [text for text in row["match"] if not read(pattern, text)] == []
    assert [text for text in row["no_match"] if read(pattern, text)] == []
    for text in row["match"]:
        assert "parts" not in row or any(part in text.lower() for part in row["parts"])


CHECKED_FIRST = [row for name in ("answers", "provider") for row in tables.table(name) if "parts" in row]


@pytest.mark.parametrize("row", CHECKED_FIRST, ids=[row["pattern"][:20] for row in CHECKED_FIRST])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_pattern_matches_contains_one_of_its_parts(row, data):
    text = data.draw(st.from_regex(re.compile("(?i)" + row["pattern"]), fullmatch=True))
    assert contains_any(text, tuple(row["parts"]))


@pytest.mark.parametrize("letter", string.ascii_lowercase)
def test_parts_are_found_in_whatever_a_pattern_takes_for_their_letters(letter):
    alike = [one for one in map(chr, range(0x3000)) if re.fullmatch(f"(?i){letter}", one)]
    assert len(alike) >= 2
    assert [one for one in alike if not contains_any(f"x{one}x", (f"x{letter}x",))] == []


def runs_in_a_directory(row, example):
    """Return whether a call depends on the directory that its host reports, or goes to another one by an option."""
    tool, arguments = example["tool"], example["arguments"]
    traits = shipped_traits(tool)
    one, two = (essential(tool, arguments, traits, cwd) for cwd in ("/one", "/two"))
    if "lists" in row:
        return ShellLine(arguments).program in directories.LISTS
    if "options" in row:
        return directories.place_of(arguments, traits.directory_arguments, "/one") != "/one"
    return one != two


@pytest.mark.parametrize("row", tables.table("directories"))
def test_directories_match_their_examples(row):
    assert [one for one in row["match"] if not runs_in_a_directory(row, one)] == []
    assert [one for one in row["no_match"] if runs_in_a_directory(row, one)] == []


def dispatches_another_tool(example):
    """Return whether a call dispatches the tool that the example names, with its arguments."""
    found = dispatched(example["tool"], example["arguments"])
    if found is None or "dispatches" not in example:
        return found is not None
    has_arguments = "inner" not in example or (found.arguments or {}) == example["inner"]
    return found.tool == example["dispatches"] and has_arguments


@pytest.mark.parametrize("row", tables.table("dispatchers"))
def test_dispatchers_match_their_examples(row):
    assert [one for one in row["match"] if not dispatches_another_tool(one)] == []
    assert [one for one in row["no_match"] if dispatches_another_tool(one)] == []


def keys_of(tool, *lists):
    policy = Player().policy.for_tool(tool)
    calls = (Call(0, tool, arguments, 0.0) for arguments in lists)
    return [key_and_arguments(call, call.arguments, policy, Keyer())[0] for call in calls]


@pytest.mark.parametrize("row", tables.table("task_lists"))
def test_task_lists_match_their_examples(row):
    for one in row["match"]:
        assert shipped_traits(one["tool"]).keeps_list
        first, same, other = keys_of(one["tool"], one["arguments"], one["same"], one["other"])
        assert first == same != other
    for one in row["no_match"]:
        first, same = keys_of(one["tool"], one["arguments"], one["same"])
        assert first != same


SHELL = {
    "changes": lambda line: ShellLine(line).intent == "change",
    "sends": lambda line: ShellLine(line).intent == "send",
    "looks": lambda line: ShellLine(line).intent in ("look", "search"),
    "searches": lambda line: ShellLine(line).intent == "search",
    "prepares": lambda line: ShellLine(line).program == "pytest" and "&&" in line,
    "shells": lambda line: ShellLine(line).program == "pytest",
    "prefixes": lambda line: ShellLine(line).intent == "change",
}


@pytest.mark.parametrize("row", tables.table("shell"))
def test_programs_of_shells_match_their_examples(row):
    assert [line for line in row["match"] if not SHELL[row["does"]](line)] == []
    assert [line for line in row["no_match"] if SHELL[row["does"]](line)] == []


@pytest.mark.parametrize("row", tables.table("tool_classes"))
def test_classes_of_tools_match_their_examples(row):
    def is_one(tool):
        traits = shipped_traits(tool)
        if row.get("trait") == "shell":
            return traits.is_shell
        return (
            traits.input_argument == row["argument"] if "trait" in row else traits.tool_class == row["class"]
        )

    assert [tool for tool in (*row["names"], *row["match"]) if not is_one(tool)] == []
    assert [tool for tool in row["no_match"] if is_one(tool)] == []


VERBS = {
    "looks": lambda tool: intent_of(words_of(tool)) == "read",
    "checks": lambda tool: intent_of(words_of(tool)) == "read",
    "writes": lambda tool: intent_of(words_of(tool)) == "write",
    "waits": lambda tool: shipped_traits(tool).tool_class == "poll" or shipped_traits(tool).checks,
    "opens": opens_file,
    "runs": lambda tool: not opens_file(tool),
    "logs": lambda tool: shipped_traits(tool).reads_errors,
    "begins": lambda tool: intent_of(words_of(tool)) == "write",
    "sends": lambda tool: intent_of(words_of(tool)) == "message",
    "steps": lambda tool: shipped_traits(tool).steps,
    "leads": lambda arguments: leads_on(json.loads(arguments)),
    "makes": lambda verb: what_was_made(f"{verb}_order", 2) != "",
    "done": lambda verb: not what_was_made(f"{verb}_order", 2).endswith("ed"),
    "reads": lambda tool: shipped_traits(tool).tool_class == "read",
    "moves": lambda tool: moves_on(tool, {}),
    "acts": acts_on_page,
    "plans": lambda tool: not intent_of([*words_of(tool), "write"]),
    "things": lambda tool: intent_of(words_of(tool)) == "write",
}


@pytest.mark.parametrize("row", tables.table("verbs"))
def test_words_of_names_match_their_examples(row):
    assert [tool for tool in row["match"] if not VERBS[row["meaning"]](tool)] == []
    assert [tool for tool in row["no_match"] if VERBS[row["meaning"]](tool)] == []


def part_read(example):
    """Return the first and the last line that a call reads; None for a call that reads no part of a file."""
    player = Player()
    player.call(example["tool"], example["arguments"])
    window = player.state.runs[""].records[-1].window
    return None if window is None else [*window[1:]]


@pytest.mark.parametrize("row", tables.table("windows"))
def test_windows_match_their_examples(row):
    assert [one for one in row["match"] if part_read(one) != one["window"]] == []
    assert [one for one in row["no_match"] if part_read(one) is not None] == []


@pytest.mark.parametrize("row", tables.table("marks"))
def test_marks_match_their_examples(row):
    for one in row["match"]:
        first, same = keys_of(one["tool"], one["one"], one["two"])
        assert first == same
    for one in row["no_match"]:
        first, other = keys_of(one["tool"], one["one"], one["two"])
        assert first != other


@pytest.mark.parametrize("row", tables.table("announcements"))
def test_announcements_match_their_examples(row):
    for text in row["match"]:
        assert re.match(row["pattern"], text.lower())
        assert is_announcement(text)
    assert not any(map(is_announcement, row["no_match"]))


@pytest.mark.parametrize("row", tables.table("provider"))
def test_troubles_match_their_examples(row):
    pattern = re.compile("(?i)" + row["pattern"])
    for text in row["match"]:
        assert pattern.search(text), text
        assert any(part in text.lower() for part in row["parts"]), text
        assert limit_and_trouble(text)[1] == ("" if row["trouble"] == "own" else row["trouble"]), text
    assert [text for text in row["no_match"] if pattern.search(text)] == []


VOLATILE = {"fields", "text", "days", "labels", "marks"}


def volatile():
    return [(name, row) for name in ("volatile", *tables.hosts()) for row in tables.table(name)]


@pytest.mark.parametrize(("name", "row"), [one for one in volatile() if not VOLATILE.isdisjoint(one[1])])
def test_what_says_nothing_is_masked_and_what_carries_a_state_stays(name, row):
    def changed(text):
        return re.sub(r"(?<![a-zA-Z])1", "2", text)

    for text in row["match"]:
        assert changed(text) != text
        assert normalise(text, plain=False) == normalise(changed(text), plain=False), text
    for text in row["no_match"]:
        assert normalise(text, plain=False) != normalise(changed(text), plain=False), text


@pytest.mark.parametrize("row", [row for _, row in volatile() if "positions" in row])
def test_numbers_of_lines_and_columns_are_masked_in_errors(row):
    assert [text for text in row["match"] if "1" in masking.without_positions(text)] == []
    assert [text for text in row["no_match"] if "1" not in masking.without_positions(text)] == []


@pytest.mark.parametrize("row", [row for _, row in volatile() if "frame" in row])
def test_the_frame_of_an_empty_output_is_nothing(row):
    assert [
        one
        for one in row["match"]
        if not answers.is_empty(normalise(one, plain=False), JsonText(), plain=False)
    ] == []
    assert [
        one
        for one in row["no_match"]
        if answers.is_empty(normalise(one, plain=False), JsonText(), plain=False)
    ] == []


@pytest.mark.parametrize(
    ("says", "is_it"),
    [
        ("failure", answers.is_failed_object),
        ("success", lambda fields: not answers.is_failed_object(fields)),
        ("beside", answers.is_failed_object),
        ("wrapper", lambda fields: answers.is_empty(json.dumps(fields), JsonText(), plain=False)),
    ],
)
def test_fields_of_objects_say_how_a_call_ended(says, is_it):
    for row in tables.rows("json_answers", says=says):
        assert [text for text in row["match"] if not is_it(json.loads(text))] == []
        assert [text for text in row["no_match"] if is_it(json.loads(text))] == []
        for text in row["match"] if "parts" in row else ():
            assert any(part in text.lower() for part in row["parts"])


def test_names_of_fields_are_written_in_one_form():
    for _, row in volatile():
        assert list(map(masking.form_of, row.get("fields", ()))) == list(row.get("fields", ()))
    for row in tables.table("json_answers"):
        assert list(map(masking.form_of, row["fields"])) == list(row["fields"])


@pytest.mark.parametrize("row", tables.table("spawns"))
def test_spawns_match_their_examples(row):
    for one in row["match"]:
        assert prompts_of(one["tool"], one["arguments"]) == one["prompts"], one
        assert prompts_of(one["tool"], json.dumps(one["arguments"])) == one["prompts"], one
        assert starts_agents(one["tool"]), one
    for one in row["no_match"]:
        assert prompts_of(one["tool"], one["arguments"]) == [], one


@pytest.mark.parametrize("row", tables.table("sql"))
def test_statements_that_change_something_match_their_examples(row):
    def is_write(statement):
        return effect_of(shipped_traits("run_sql"), {"sql": statement}) == "write"

    assert [one for one in row["match"] if not is_write(one)] == []
    assert [one for one in row["no_match"] if is_write(one)] == []


@pytest.mark.parametrize("row", tables.table("actions"))
def test_actions_in_arguments_match_their_examples(row):
    wanted = {"polls": "poll", "looks": ""}.get(row.get("does"), "write")
    tool = shipped_traits("create_issue" if row.get("does") == "looks" else "do_things")

    def has_effect(text):
        return effect_of(tool, json.loads(text)) == wanted

    assert [one for one in row["match"] if not has_effect(one)] == []
    assert [one for one in row["no_match"] if has_effect(one)] == []
