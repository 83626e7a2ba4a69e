"""Commands in a chat."""

from __future__ import annotations

from typing import Any

import pytest

from detection.engine.commands import (
    UNSET,
    Change,
    Command,
    CommandError,
    apply,
    contains_command,
    parse,
    reply,
    shown_name,
    without_commands,
)
from detection.engine.policy import ENVIRONMENT, FIELDS, PROJECT, SERVER, SESSION, ToolRule, resolve
from detection.engine.scopes import Scope


def applied(text, values=None):
    for command in parse(text):
        values = apply(command, values or {})
    return values


def test_several_settings_in_one_command():
    assert parse("please !/set(tool-loop-mode=chance, tool-loop-max-repeats=6) thanks") == [
        Command((Change("mode", "chance"), Change("max_repeats", "6")))
    ]


def test_several_commands_in_one_text():
    assert parse("!/set(tool-loop-ttl=60) !/unset(tool-loop-mode, tool-loop-detection)") == [
        Command((Change("ttl_seconds", "60"),)),
        Command((Change("mode", UNSET), Change("enabled", UNSET))),
    ]


def test_a_command_changes_what_it_names_and_keeps_the_rest():
    before = {"mode": "warn", "max_repeats": 9}
    assert applied("!/unset(tool-loop-mode) !/set(tool-loop-ttl=60)", before) == {
        "max_repeats": 9,
        "ttl_seconds": 60,
    }
    assert before == {"mode": "warn", "max_repeats": 9}


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("tool-loop-detection=off", {"enabled": False}),
        ("tool_loop_detection=YES", {"enabled": True}),
        ("tool-loop=1", {"enabled": True}),
        ("tool_loop_detection_enabled=no", {"enabled": False}),
        ("tool-loop-repeats=5", {"max_repeats": 5}),
        ("tool-loop-detection-max-repeats=5", {"max_repeats": 5}),
        ("tool-loop-ttl-seconds=5", {"ttl_seconds": 5}),
        ("TOOL-LOOP-MODE=Break", {"mode": "break"}),
        ("tool-loop-mode=warn,stop", {"mode": ("warn", "stop")}),
        ("tool-loop-preset=observe", {"preset": "observe"}),
        ("tool-loop-cycle-min-laps=4", {"cycle_min_laps": 4}),
    ],
)
def test_other_names_are_accepted(part, values):
    assert applied(f"!/set({part})") == values


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("!/set(tool-loop-max-repeats=1)", "tool-loop-max-repeats must be between 2 and 1,000."),
        ("!/set(tool-loop-ttl=0)", "tool-loop-ttl must be between 1 and 31,536,000."),
        (
            "!/set(tool-loop-max-repeats=many)",
            "tool-loop-max-repeats must be an integer between 2 and 1,000.",
        ),
        ("!/set(tool-loop-mode)", "tool-loop-mode needs a value, as in !/set(tool-loop-mode=…)."),
        ("!/set()", "!/set() names no setting."),
        (
            "!/set(tool-loop-judge-available=true)",
            "tool-loop-judge-available cannot be set for the scope session, only for environment.",
        ),
        (
            "!/set(tool-loop-cycle-min-length=6, tool-loop-cycle-max-length=3)",
            "tool-loop-cycle-min-length must be at most `cycle_max_length`.",
        ),
        (
            "!/set(tool-loop-colour=red)",
            "Unknown setting 'tool-loop-colour'. Known: "
            + ", ".join(
                f"tool-loop-{name}"
                for name in ("detection", "max-repeats", "ttl", "mode", "preset", "exempt")
            )
            + ".",
        ),
    ],
)
def test_an_error_is_one_line(text, line):
    with pytest.raises(CommandError) as caught:
        applied(text)

    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["", "hello", "!/set(colour=red)", "!/unset(model)"])
def test_commands_for_others_are_ignored(text):
    assert parse(text) == []


def test_a_command_is_recognised_without_being_read():
    assert contains_command("now !/set(tool-loop-mode=chance)")
    assert contains_command("!/unset(tool_loop_ttl)")
    assert not contains_command("!/set(model=gpt)")
    assert not contains_command("set tool-loop-mode")


def test_the_reply_names_the_new_values():
    command = Command(
        (Change("max_repeats", "6"), Change("enabled", "false"), Change("mode", UNSET)),
    )
    policy = resolve(
        [(SERVER, {"mode": "chance_then_break"}), (SESSION, {"max_repeats": 6, "enabled": False})]
    )

    assert reply(command.changes, policy) == (
        "tool-loop-max-repeats is now 6; tool-loop-detection is now false; tool-loop-mode is now chance_then_break (from server)."
    )


@pytest.mark.parametrize(
    "body",
    [
        "foo=1, tool-loop-mode=chance",
        "foo, tool_loop_mode=chance",
        "model=gpt,\n  temperature=0, Tool-Loop-max-repeats=6",
        "foo=a,b , loop-guard-mode=chance",
    ],
)
@pytest.mark.parametrize("verb", ["set", "unset", "SET"])
def test_one_setting_of_ours_makes_the_whole_list_ours(body, verb):
    text = f"please !/{verb}({body}) thanks"
    first = body.partition(",")[0].partition("=")[0]

    assert contains_command(text)
    assert without_commands(text) == "please  thanks"
    (command,) = parse(text)
    assert command.changes == ()
    assert command.error.startswith(f"Unknown setting '{first}'. Known: tool-loop-detection, ")


@pytest.mark.parametrize(
    "text",
    [
        "!/set(foo=1)",
        "!/set(foo=1, bar=tool)",
        "!/unset(foo, loop)",
        "!/set(note=about tool-loop-mode)",
        "!/set(foo=1) and then, tool-loop-mode=chance",
        "!/set(foo=(1), tool-loop-mode=chance)",
        "(foo=1, tool-loop-mode=chance)",
    ],
)
def test_a_list_without_a_setting_of_ours_stays_somebody_elses(text):
    assert not contains_command(text)
    assert without_commands(text) == text
    assert parse(text) == []


def test_long_texts_are_searched_in_linear_time():
    for unit in ("!/set(", "!/set(a,", "!/set(" + "," * 900, "!/set(" + "a, " * 500 + ") "):
        assert not contains_command(unit * (2000 // len(unit) + 1))


# What a preset does not replace


Scopes = list[tuple[Scope, dict[str, Any]]]


def test_the_reply_to_a_preset_names_what_wider_scopes_still_decide():
    scopes: Scopes = [
        (ENVIRONMENT, {"judge_available": True, "window_calls": 10}),
        (PROJECT, {"max_repeats": 9, "mode": ("warn", "stop")}),
        (SESSION, {"preset": "proxy", "ttl_seconds": 30}),
    ]
    rules = [ToolRule("search_*", values={"max_repeats": 3})]
    preset, ttl = Change("preset", "proxy"), Change("ttl_seconds", "30")

    assert reply((preset, ttl), resolve(scopes, rules)) == (
        "tool-loop-preset is now proxy; tool-loop-ttl is now 30; tool-loop-mode stays warn,stop (from project); "
        "tool-loop-max-repeats stays 9 (from project); tool-loop-max-repeats stays 3 (from tool:search_*)."
    )
    assert "tool-loop-ttl stays 30 (from session)" in reply((preset,), resolve(scopes))
    assert reply((ttl,), resolve(scopes)) == "tool-loop-ttl is now 30."


def test_the_reply_to_a_preset_names_nothing_that_agrees_with_it():
    scopes: Scopes = [(SERVER, {"max_repeats": 4, "preset": "standard"}), (SESSION, {"preset": "proxy"})]

    assert reply((Change("preset", "proxy"),), resolve(scopes)) == "tool-loop-preset is now proxy."


def test_a_long_reply_to_a_preset_counts_what_it_does_not_name():
    values = {name: field.maximum for name, field in FIELDS.items() if field.type == "int" and field.maximum}
    scopes: Scopes = [
        (PROJECT, {name: values[name] for name in list(values)[:9]}),
        (SESSION, {"preset": "proxy"}),
    ]
    line = reply((Change("preset", "proxy"),), resolve(scopes))

    assert line.count(" stays ") == 6
    assert line.endswith("; 3 more settings stay as set.")


@pytest.mark.parametrize("field", FIELDS)
def test_every_setting_can_be_reached_by_its_shown_name(field):
    assert parse(f"!/unset({shown_name(field)})") == [Command((Change(field, UNSET),))]


def test_a_number_after_plus_raises_the_limit_that_is_in_effect():
    policy = resolve([(SERVER, {"session_budget_max_cost_usd": 1.5})])
    (command,) = parse("!/set(tool-loop-session-budget-max-cost-usd=+2)")
    raised = apply(command, {}, policy.get)
    assert raised == {"session_budget_max_cost_usd": 3.5}
    assert apply(command, raised) == {"session_budget_max_cost_usd": 5.5}
    assert applied("!/set(tool-loop-max-repeats=+2)") == {"max_repeats": 6}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("tool-loop-budget-max-calls=+0", "raised by a number"),
        ("tool-loop-budget-max-calls=+-5", "raised by a number"),
        ("tool-loop-budget-max-calls=+many", "raised by a number"),
        ("tool-loop-budget-max-cost-usd=+nan", "raised by a number"),
        ("tool-loop-session-budget-max-calls=+5", "is not limited"),
        ("tool-loop-mode=+5", "must be one of"),
    ],
)
def test_a_raise_that_cannot_be_is_rejected(value, error):
    with pytest.raises(CommandError, match=error):
        applied(f"!/set({value})")
