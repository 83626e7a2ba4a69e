"""The scripts are sound before anybody plays them."""

import json

import pytest

from detection.demo.player import SCENARIOS
from detection.demo.scenario import DemoCall

VALUES = {"n": 3, "m": 30, "roll": 123}


def calls_of(scenario):
    return (*scenario.opening, *scenario.repeated, *scenario.close)


def test_names_are_used_once():
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_the_scenarios_use_both_endpoints_and_several_agents_backends_and_models():
    for field, least in (("endpoint", 2), ("agent", 5), ("backend", 3), ("model", 5)):
        assert len({getattr(scenario, field) for scenario in SCENARIOS}) >= least
    assert sum(scenario.stuck for scenario in SCENARIOS) >= 9
    assert sum(not scenario.stuck for scenario in SCENARIOS) >= 6


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_placeholder_is_filled(scenario):
    for subject in scenario.subjects:
        for call in calls_of(scenario):
            arguments, result = call.filled({**VALUES, **subject})
            assert "$" not in arguments + result
            if isinstance(call.arguments, dict):
                assert isinstance(json.loads(arguments), dict)


def test_a_number_stays_a_number():
    assert json.loads(DemoCall("list", {"page": "$n", "name": "part $n"}, "").filled(VALUES)[0]) == {
        "page": 3,
        "name": "part 3",
    }
