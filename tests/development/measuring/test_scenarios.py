"""The written scenarios, each as a test of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from development.measuring import agent_scenarios, seed_scenarios

FOLDER = Path(__file__).parents[2] / "scenarios"


FAILING = {"rec-script-silent-edits": "not found: a script that prints nothing, whatever is edited"}
"""Scenarios that do not come out as they should, and why. One that passes must leave."""


def scenarios(name: str) -> list:
    rows = json.loads((FOLDER / name).read_text(encoding="utf-8"))["scenarios"]
    return [
        pytest.param(
            row,
            id=row["id"],
            marks=[pytest.mark.xfail(reason=FAILING[row["id"]])] if row["id"] in FAILING else [],
        )
        for row in rows
    ]


@pytest.mark.parametrize("scenario", scenarios("seeds.json") + scenarios("seeds_more.json"))
def test_a_system_we_grew_from_comes_out_as_its_document_says(scenario):
    assert seed_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("agents.json"))
def test_a_situation_of_a_known_agent_comes_out_as_it_should_under_the_defaults(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("patterns.json"))
def test_a_common_way_to_work_or_to_loop_is_judged_as_it_should_under_the_defaults(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("variations.json"))
def test_a_loop_or_a_healthy_run_in_other_words_forms_and_languages_is_judged_as_it_should(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("recorded.json"))
def test_a_run_like_one_that_was_recorded_is_judged_as_it_should_under_the_defaults(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("endings.json"))
def test_a_blocked_call_ends_as_the_settings_of_the_scenario_say(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("sessions.json"))
def test_what_spans_the_turns_of_a_session_is_judged_as_it_should(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("families.json"))
def test_what_several_sessions_do_together_is_judged_as_it_should(scenario):
    assert agent_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("silence.json"))
def test_silence_is_reported_where_something_is_stalled(scenario):
    assert agent_scenarios.play(scenario).problems == ()


def named(name: str, file: str = "seeds_more.json") -> dict:
    return next(row.values[0] for row in scenarios(file) if row.values[0]["id"] == name)


WRONG = [
    ("000-01-break-default-fires-on-4th", {"finish_reason": "stop"}, "finish_reason"),
    ("001-23-callback-overrides", {"stopped": True}, "stopped"),
    ("000-35-sessions-isolated-other-side", {"session": "s2"}, "session"),
    ("002-11-log-record", {"log": {"level": "INFO"}}, "log"),
    ("004-18-judge-request-shape", {"judge_request": {"prompt_has": ["another"]}}, "judge_request"),
    ("004-18-judge-request-shape", {"judge_request": {"max_tokens": 5}}, "judge_request"),
    ("003-09-escape-means-keep", {"choice": "escape"}, "choice"),
    ("003-13-signatures-are-independent", {"counts": {"r{p:2}": 2}}, "counts"),
    ("000-01-break-default-fires-on-4th", {"colour": "red"}, "unknown expectation 'colour'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "problem"), WRONG)
def test_every_expectation_of_a_detection_is_compared(name, wrong, problem):
    scenario = named(name, "seeds.json" if name.startswith("003-13") else "seeds_more.json")
    expect = scenario["expect"]
    first = {**expect["detections"][0], **wrong}
    played = seed_scenarios.play(
        {**scenario, "expect": {**expect, "detections": [first, *expect["detections"][1:]]}}
    )

    assert [one for one in played.problems if problem in one]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("004-15-approaching-notice", {"notices": []}),
        ("002-12-iteration-cap-finishes-without-tools", {"final": "error"}),
        ("004-15-approaching-notice", {"colour": "red"}),
    ],
)
def test_every_expectation_of_a_scenario_is_compared(name, wrong):
    scenario = next(
        row.values[0]
        for row in scenarios("seeds.json") + scenarios("seeds_more.json")
        if row.values[0]["id"] == name
    )

    assert seed_scenarios.play({**scenario, "expect": {**scenario["expect"], **wrong}}).problems


def test_a_disabled_detection_tracks_nothing_and_an_enabled_one_does():
    scenario = named("000-17-disabled-tracks-nothing")
    played = seed_scenarios.play({**scenario, "config": {**scenario["config"], "enabled": True}})

    assert "tracked: expected 0, got 10" in played.problems


@pytest.mark.parametrize(
    "change",
    [{"ideal": "silent"}, {"calls": [{"tool": "@think"}]}, {"calls": [{"tool": "t", "before": "restart"}]}],
)
def test_a_situation_with_an_unknown_part_is_rejected(change):
    scenario = named("gemini-five-identical", "agents.json")

    assert "unknown" in agent_scenarios.play({**scenario, **change}).problems[0]


def test_a_stream_that_is_retried_sends_its_calls_again_and_they_do_not_count():
    calls = [{"tool": "t", "args": {}, "t": n, "round": 1 + n // 2} for n in range(2)]
    retried = {
        "id": "r",
        "ideal": "quiet",
        "calls": [*calls, {"tool": "u", "t": 2, "round": 1, "before": "stream_retry"}],
    }

    assert agent_scenarios.play(retried).passed


def test_a_scenario_without_its_detector_fails():
    scenario = next(
        row.values[0] for row in scenarios("seeds.json") if row.values[0]["id"] == "001-09-pattern-abab"
    )
    config = {**scenario["config"], "level": 1}

    assert seed_scenarios.play(scenario).passed
    assert not seed_scenarios.play({**scenario, "config": config}).passed
