"""Which settings hold, and where each came from."""

from __future__ import annotations

import pytest

from detection.engine.policy import (
    FIELDS,
    KINDS,
    PRESETS,
    PolicyError,
    ToolRule,
    environment,
    relevant_fields,
    resolve,
    resolve_for_tool,
    validate,
)


def test_each_field_is_resolved_alone_and_names_its_tier():
    policy = resolve(
        [
            ("environment", {"max_repeats": 6, "ttl_seconds": 60}),
            ("model:openai/gpt-5", {"mode": "chance"}),
            ("session", {"max_repeats": 9, "ttl_seconds": None}),
        ]
    )

    assert policy.explain(("max_repeats", "ttl_seconds", "mode", "window_calls")) == {
        "max_repeats": {"value": 9, "source": "session"},
        "ttl_seconds": {"value": 60, "source": "environment"},
        "mode": {"value": "chance_then_break", "source": "model:openai/gpt-5"},
        "window_calls": {"value": 10, "source": "preset:standard"},
    }


def test_a_preset_comes_in_below_every_tier_and_the_highest_one_named_decides():
    policy = resolve(
        [
            ("environment", {"max_repeats": 7}),
            ("server", {"preset": "balanced"}),
            ("project", {"preset": "advisory"}),
        ]
    )

    assert policy.get("mode") == "warn"
    assert policy.sources["mode"] == "preset:advisory"
    assert policy.get("max_repeats") == 7
    assert policy.sources["preset"] == "project"


def test_a_tool_rule_lies_between_the_model_and_the_session():
    rules = (ToolRule("search_*", values={"max_repeats": 8, "ttl_seconds": 30}),)
    policy = resolve([("model:m", {"max_repeats": 5}), ("session", {"ttl_seconds": 99})], rules)

    found = policy.for_tool("search_web")

    assert (found.get("max_repeats"), found.sources["max_repeats"]) == (8, "tool:search_*")
    assert (found.get("ttl_seconds"), found.sources["ttl_seconds"]) == (99, "session")
    assert policy.for_tool("other").get("max_repeats") == 5


def test_a_later_rule_wins_and_lists_add_up():
    rules = (
        ToolRule("*", tool_class="read", ignore_arguments=("a",)),
        ToolRule("x", tool_class="poll", ignore_arguments=("b",), volatile_result_fields=("c",)),
    )

    traits = resolve_for_tool(resolve([]), "x", rules).traits

    assert traits.tool_class == "poll"
    assert traits.ignore_arguments == ("a", "b")
    assert traits.volatile_result_fields == ("c",)


def test_an_exempt_rule_makes_the_tool_neutral():
    assert resolve([], (ToolRule("log*", exempt=True),)).for_tool("log_note").traits.neutral


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"max_repeats": 1}, "max_repeats"),
        ({"max_repeats": 2.5}, "max_repeats"),
        ({"max_repeats": True}, "max_repeats"),
        ({"max_repeats": "many"}, "max_repeats"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": float("nan")}, "ttl_seconds"),
        ({"mode": "explode"}, "mode"),
        ({"mode": []}, "mode"),
        ({"mode": ["warn", "explode"]}, "mode"),
        ({"enabled": "maybe"}, "enabled"),
        ({"nonsense": 1}, "nonsense"),
        ({"similar_ratio": 1.5}, "similar_ratio"),
        ({"cycle_min_length": 4, "cycle_max_length": 3}, "cycle_min_length"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, field):
    with pytest.raises(PolicyError) as caught:
        validate(values)

    assert caught.value.field == field
    assert caught.value.message


def test_a_ladder_may_be_a_name_or_a_list():
    assert validate({"mode": "Chance"}) == {"mode": "chance_then_break"}
    assert validate({"mode": ["warn", "stop"]}) == {"mode": ("warn", "stop")}
    assert validate({"mode": "warn, stop"}) == {"mode": ("warn", "stop")}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name):
    assert validate(PRESETS[name])
    assert resolve([("session", {"preset": name})]).get("preset") == name


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_every_field_says_what_it_is_and_accepts_its_own_default(field):
    assert field.label
    assert field.help.endswith(".")
    assert field.clean(field.default) == field.default


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_the_settings_that_explain_it(kind):
    assert set(relevant_fields(kind)) <= set(FIELDS)


def test_the_environment_is_read_with_the_documented_names():
    env = {
        "TOOL_LOOP_DETECTION_ENABLED": " On ",
        "TOOL_LOOP_MAX_REPEATS": "6",
        "TOOL_LOOP_TTL_SECONDS": "90",
        "TOOL_LOOP_MODE": "CHANCE_THEN_BREAK",
        "HOME": "/root",
    }

    assert environment(env) == {
        "enabled": True,
        "max_repeats": 6,
        "ttl_seconds": 90,
        "mode": "chance_then_break",
    }


def test_a_variable_that_cannot_be_read_stops_the_start_and_is_named():
    with pytest.raises(PolicyError, match="TOOL_LOOP_TTL_SECONDS: must be an integer"):
        environment({"TOOL_LOOP_TTL_SECONDS": "soon"})


def test_leniently_it_is_left_out():
    assert environment({"TOOL_LOOP_TTL_SECONDS": "soon", "TOOL_LOOP_MAX_REPEATS": "1"}, lenient=True) == {}
