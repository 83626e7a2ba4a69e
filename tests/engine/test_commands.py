"""Commands in a chat."""

from __future__ import annotations

import pytest

from detection.engine.commands import UNSET, Change, CommandError, contains_command, parse, reply, shown_name
from detection.engine.policy import FIELDS, resolve


def test_several_settings_in_one_command():
    assert parse("please !/set(tool-loop-mode=chance, tool-loop-max-repeats=6) thanks") == [
        Change("mode", "chance_then_break"),
        Change("max_repeats", 6),
    ]


def test_several_commands_in_one_text():
    assert parse("!/set(tool-loop-ttl=60) !/unset(tool-loop-mode, tool-loop-detection)") == [
        Change("ttl_seconds", 60),
        Change("mode", UNSET),
        Change("enabled", UNSET),
    ]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("tool-loop-detection=off", Change("enabled", False)),
        ("tool_loop_detection=YES", Change("enabled", True)),
        ("tool-loop=1", Change("enabled", True)),
        ("tool-loop-repeats=5", Change("max_repeats", 5)),
        ("tool-loop-ttl-seconds=5", Change("ttl_seconds", 5)),
        ("TOOL-LOOP-MODE=Break", Change("mode", "break")),
        ("tool-loop-mode=warn,stop", Change("mode", ("warn", "stop"))),
        ("tool-loop-preset=observe", Change("preset", "observe")),
        ("tool-loop-cycle-min-laps=4", Change("cycle_min_laps", 4)),
    ],
)
def test_synonyms_are_understood(part, change):
    assert parse(f"!/set({part})") == [change]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("!/set(tool-loop-max-repeats=1)", "tool-loop-max-repeats must be at least 2 calls."),
        ("!/set(tool-loop-ttl=0)", "tool-loop-ttl must be at least 1 seconds."),
        ("!/set(tool-loop-max-repeats=many)", "tool-loop-max-repeats must be an integer."),
        ("!/set(tool-loop-mode)", "tool-loop-mode needs a value, as in !/set(tool-loop-mode=…)."),
        ("!/set()", "!/set() names no setting."),
    ],
)
def test_what_was_wrong_is_said_in_one_line(text, line):
    with pytest.raises(CommandError) as caught:
        parse(text)

    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["", "hello", "!/set(colour=red)", "!/set(tool-loop-colour=red)"])
def test_what_is_no_command_of_ours_is_refused(text):
    with pytest.raises(CommandError):
        parse(text)


def test_a_command_is_recognised_without_being_read():
    assert contains_command("now !/set(tool-loop-mode=chance)")
    assert contains_command("!/unset(tool_loop_ttl)")
    assert not contains_command("!/set(model=gpt)")
    assert not contains_command("set tool-loop-mode")


def test_the_answer_says_what_holds_now():
    changes = parse("!/set(tool-loop-max-repeats=6, tool-loop-detection=false) !/unset(tool-loop-mode)")
    policy = resolve([("server", {"mode": "chance"}), ("session", {"max_repeats": 6, "enabled": False})])

    assert reply(changes, policy) == (
        "tool-loop-max-repeats is now 6; tool-loop-detection is now false; tool-loop-mode is now chance_then_break (from server)."
    )


@pytest.mark.parametrize("field", FIELDS)
def test_every_setting_can_be_reached_by_its_shown_name(field):
    assert parse(f"!/unset({shown_name(field)})") == [Change(field, UNSET)]
