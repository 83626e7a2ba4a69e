"""The written scenarios, each as a test of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detection.measuring import agent_scenarios, seed_scenarios

FOLDER = Path(__file__).parents[1] / "scenarios"


def scenarios(name: str) -> list:
    rows = json.loads((FOLDER / name).read_text(encoding="utf-8"))["scenarios"]
    return [pytest.param(row, id=row["id"]) for row in rows]


@pytest.mark.parametrize("scenario", scenarios("seeds.json"))
def test_a_system_we_grew_from_comes_out_as_its_document_says(scenario):
    assert seed_scenarios.play(scenario).problems == ()


@pytest.mark.parametrize("scenario", scenarios("agents.json"))
def test_a_situation_of_a_known_agent_comes_out_as_it_should_under_the_defaults(scenario):
    assert agent_scenarios.play(scenario).problems == ()


def test_a_scenario_without_its_detector_fails():
    scenario = next(
        row.values[0] for row in scenarios("seeds.json") if row.values[0]["id"] == "001-09-pattern-abab"
    )
    config = {**scenario["config"], "level": 1}

    assert seed_scenarios.play(scenario).passed
    assert not seed_scenarios.play({**scenario, "config": config}).passed
