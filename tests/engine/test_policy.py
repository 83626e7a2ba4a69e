"""Which settings hold, and where each came from."""

from __future__ import annotations

import pytest

from detection.engine.detectors import KINDS
from detection.engine.fields import ALIASES
from detection.engine.policy import (
    ENVIRONMENT,
    FIELDS,
    PRESETS,
    PROJECT,
    SERVER,
    SESSION,
    PolicyError,
    Scope,
    ToolRule,
    environment_override,
    environment_variables,
    relevant_fields,
    resolve,
    stored_values,
    validate,
)

TOOLS = Scope("tool", pattern="search_*")


def test_each_setting_is_resolved_alone_and_names_its_scope():
    policy = resolve(
        [
            (ENVIRONMENT, {"max_repeats": 6, "ttl_seconds": 60}),
            (Scope.of(backend="openai", model="gpt-5"), {"mode": "chance_then_break"}),
            (SESSION, {"max_repeats": 9}),
        ]
    )

    assert policy.explain(("max_repeats", "ttl_seconds", "mode", "window_calls")) == {
        "max_repeats": {"value": 9, "source": "session"},
        "ttl_seconds": {"value": 60, "source": "environment"},
        "mode": {"value": "chance_then_break", "source": "model:openai/gpt-5"},
        "window_calls": {"value": 10, "source": "preset:standard"},
    }


def test_the_values_of_a_preset_lie_below_every_override_and_the_narrowest_preset_decides():
    policy = resolve(
        [
            (ENVIRONMENT, {"max_repeats": 7}),
            (SERVER, {"preset": "balanced"}),
            (PROJECT, {"preset": "advisory"}),
        ]
    )

    assert policy.get("mode") == "warn"
    assert policy.sources["mode"] == "preset:advisory"
    assert policy.get("max_repeats") == 7
    assert policy.sources["preset"] == "project"


def test_a_tool_rule_applies_between_the_model_and_the_session():
    rules = (ToolRule("search_*", values={"max_repeats": 8, "ttl_seconds": 30}),)
    policy = resolve(
        [(Scope.of(backend="b", model="m"), {"max_repeats": 5}), (SESSION, {"ttl_seconds": 99})], rules
    )

    found = policy.for_tool("search_web")

    assert (found.get("max_repeats"), found.sources["max_repeats"]) == (8, "tool:search_*")
    assert (found.get("ttl_seconds"), found.sources["ttl_seconds"]) == (99, "session")
    assert policy.for_tool("other").get("max_repeats") == 5


def test_a_later_rule_wins_and_lists_add_up():
    rules = (
        ToolRule("*", tool_class="read", ignore_arguments=("a",)),
        ToolRule("x", tool_class="poll", ignore_arguments=("b",), volatile_result_fields=("c",)),
    )

    traits = resolve([], rules).for_tool("x").traits

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
        ({"max_repeats": 5, "tool_loop_detection_max_repeats": 6}, "max_repeats"),
    ],
)
def test_a_wrong_value_is_rejected_by_name(values, field):
    with pytest.raises(PolicyError) as caught:
        validate(PROJECT, values)

    assert caught.value.field == field
    assert caught.value.message


def test_a_ladder_may_be_a_name_or_a_list():
    assert validate(PROJECT, {"mode": "Chance"}) == {"mode": "chance_then_break"}
    assert validate(PROJECT, {"mode": ["warn", "stop"]}) == {"mode": ("warn", "stop")}
    assert validate(PROJECT, {"mode": "warn, stop"}) == {"mode": ("warn", "stop")}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name):
    assert validate(PROJECT, PRESETS[name])
    assert resolve([(SESSION, {"preset": name})]).get("preset") == name


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_every_field_says_what_it_is_and_accepts_its_own_default(field):
    assert field.label
    assert field.help.endswith(".")
    assert field.clean(field.default) == field.default


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_the_settings_that_explain_it(kind):
    assert set(relevant_fields(kind)) <= set(FIELDS)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"ttl_seconds": 0}, "`ttl_seconds` must be between 1 and 31,536,000."),
        ({"ttl_seconds": "soon"}, "`ttl_seconds` must be an integer between 1 and 31,536,000."),
        ({"similar_ratio": 2}, "`similar_ratio` must be between 0.5 and 1."),
        ({"enabled": "maybe"}, "`enabled` must be true or false."),
        ({"repeat_scope": "all"}, "`repeat_scope` must be one of consecutive, window, run."),
        ({"nonsense": 1}, "`nonsense` is not a setting."),
    ],
)
def test_an_error_names_the_setting_what_is_wrong_and_what_is_allowed(values, sentence):
    with pytest.raises(PolicyError) as caught:
        validate(PROJECT, values)
    assert str(caught.value) == sentence


def test_every_wrong_setting_is_named():
    with pytest.raises(PolicyError) as caught:
        validate(PROJECT, {"max_repeats": 1, "ttl_seconds": 60, "mode": "sing"})
    assert [error.field for error in (caught.value, *caught.value.others)] == ["max_repeats", "mode"]


@pytest.mark.parametrize(
    ("scope", "name", "allowed"),
    [
        (TOOLS, "counting_scope", False),
        (TOOLS, "attended", False),
        (TOOLS, "preset", True),
        (SESSION, "counting_scope", True),
        (PROJECT, "judge_available", False),
        (SESSION, "judge_available", False),
        (ENVIRONMENT, "judge_available", True),
    ],
)
def test_a_setting_must_fit_the_scope(scope, name, allowed):
    values = {name: FIELDS[name].default}
    if allowed:
        assert validate(scope, values) == values
    else:
        with pytest.raises(PolicyError, match="cannot be set for the scope"):
            validate(scope, values)


def test_a_preset_for_some_tools_leaves_the_settings_of_the_whole_session_alone():
    policy = resolve([], (ToolRule("search_*", values={"preset": "proxy"}),)).for_tool("search_web")
    assert policy.get("ttl_from") == "entry"
    assert (policy.get("counting_scope"), policy.sources["counting_scope"]) == ("run", "preset:standard")


@pytest.mark.parametrize("alias", ALIASES)
def test_a_setting_may_be_given_by_its_alias(alias):
    name = ALIASES[alias]
    assert validate(PROJECT, {alias: FIELDS[name].default}) == {name: FIELDS[name].default}


def test_values_from_storage_are_canonical_again_and_forget_settings_that_no_longer_exist():
    assert stored_values({"mode": ["warn", "stop"], "max_repeats": 3, "former": 1}) == {
        "mode": ("warn", "stop"),
        "max_repeats": 3,
    }


def test_the_environment_is_read_with_the_documented_names():
    env = {
        "TOOL_LOOP_DETECTION_ENABLED": " On ",
        "TOOL_LOOP_MAX_REPEATS": "6",
        "TOOL_LOOP_TTL_SECONDS": "90",
        "TOOL_LOOP_MODE": "CHANCE_THEN_BREAK",
        "TOOL_LOOP_PRESET": "",
        "HOME": "/root",
    }

    assert environment_override(env) == {
        "enabled": True,
        "max_repeats": 6,
        "ttl_seconds": 90,
        "mode": "chance_then_break",
    }


@pytest.mark.parametrize("variable", environment_variables())
def test_every_setting_has_a_variable(variable):
    name = environment_variables()[variable]
    assert environment_override({variable: as_text(FIELDS[name].default)}) == {name: FIELDS[name].default}


def as_text(value):
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_only_what_the_server_finds_out_and_what_projects_decide_have_no_variable():
    without = {"judge_available", "judge_sees_request"}
    assert set(FIELDS) - set(environment_variables().values()) == without


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            {"TOOL_LOOP_TTL_SECONDS": "soon"},
            "`TOOL_LOOP_TTL_SECONDS` must be an integer between 1 and 31,536,000.",
        ),
        (
            {"TOOL_LOOP_MAX_REPEAT": "4"},
            "`TOOL_LOOP_MAX_REPEAT` is no setting's variable; the nearest is `TOOL_LOOP_MAX_REPEATS`.",
        ),
        *(
            ({wrong: "4"}, f"`{wrong}` is no setting's variable; the nearest is `{right}`.")
            for wrong, right in (
                ("TOOL_LOOP_ENABLED", "TOOL_LOOP_DETECTION_ENABLED"),
                ("TOOL_LOOP_DETECTION", "TOOL_LOOP_DETECTION_ENABLED"),
                ("TOOL_LOOP_DETECTION_ENABLE", "TOOL_LOOP_DETECTION_ENABLED"),
                ("TOOL_LOOP_TTL", "TOOL_LOOP_TTL_SECONDS"),
                ("TOOL_LOOP_REPEATS", "TOOL_LOOP_MAX_REPEATS"),
                ("TOOL_LOOP_DETECTION_MAX_REPEATS", "TOOL_LOOP_MAX_REPEATS"),
                ("TOOL_LOOP_CYCLES_ENABLED", "TOOL_LOOP_CYCLE_ENABLED"),
                ("TOOL_LOOP_PRESETS", "TOOL_LOOP_PRESET"),
            )
        ),
        ({"TOOL_LOOP_XYZ": "4"}, "`TOOL_LOOP_XYZ` is no setting's variable."),
        ({"TOOL_LOOP_JUDGE_AVAILABLE": "true"}, None),
        (
            {"TOOL_LOOP_CYCLE_MIN_LENGTH": "4", "TOOL_LOOP_CYCLE_MAX_LENGTH": "3"},
            "`TOOL_LOOP_CYCLE_MIN_LENGTH` must be at most `cycle_max_length`.",
        ),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(env, sentence):
    with pytest.raises(PolicyError) as caught:
        environment_override(env)
    assert sentence is None or str(caught.value) == sentence
