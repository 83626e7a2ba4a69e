"""What a start promises about its first try."""

import pytest

from detection.engine.scopes import PROJECT
from detection.models import Project
from detection.services.audit import SYSTEM
from detection.services.maintenance.trial import ARGUMENTS, MAX_CALLS, TOOL, Trial, trial
from detection.services.policies import overrides


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Trial(4, "block")),
        ({"max_repeats": 7}, Trial(7, "block")),
        ({"preset": "proxy", "max_repeats": 3}, Trial(3, "stop")),
        ({"preset": "interactive"}, Trial(4, "hold")),
        ({"preset": "observe"}, Trial()),
        ({"enabled": False}, Trial()),
        ({"max_repeats": MAX_CALLS + 1, "budget_max_calls": 0, "stagnation_enabled": False}, Trial()),
    ],
)
def test_it_follows_the_settings_in_force(api, project, values, expected):
    Project.objects.exclude(pk=project.pk).delete()
    overrides.save_override(project.pk, PROJECT, values, SYSTEM)
    assert trial() == expected

    seen = [api.call(tool=TOOL, arguments=ARGUMENTS).json()["decision"] for _ in range(expected.number or 4)]
    stops = [one for one in seen if one in ("block", "hold", "stop")]
    assert stops == ([expected.decision] if expected.number else [])
    assert not expected.number or seen[-1] == expected.decision


@pytest.mark.django_db
def test_without_a_project_it_promises_nothing():
    assert trial() == Trial()
