"""All scenarios, run through the real API against the real database."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from detection.demo.player import SCENARIOS
from detection.models import Incident, Project, Session
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from detection.services.sessions import evaluation

FAST = 500.0
GOES_ON = {"allow", "warn"}


@pytest.fixture
def token(transactional_db):
    project = Project.objects.create(slug="default", name="Default project")
    return create_key(project, "demo player", SYSTEM, scopes=["ingest", "guard", "read"], is_demo=True)[1]


def scenario_of(session_name):
    return session_name.split("/")[1].rsplit("-", 1)[0]


def test_every_scenario_shows_what_it_is_for(live_server, token):
    call_command("demo", url=live_server.url, key=token, rounds=1, speed=FAST, agents=3)
    for session in Session.objects.all():
        while evaluation.evaluate(session.key):
            pass
    sessions = {scenario_of(session.external_id): session for session in Session.objects.all()}
    assert sessions.keys() == {scenario.name for scenario in SCENARIOS}
    assert all(session.is_demo for session in sessions.values())
    reactions: dict[Any, set[Any]] = {name: set() for name in sessions}
    for incident in Incident.objects.all():
        reactions[scenario_of(incident.session_name)].add(incident.decision)
    for scenario in SCENARIOS:
        if scenario.stuck:
            assert reactions[scenario.name] - {"allow"}, scenario.name
        else:
            assert reactions[scenario.name] <= GOES_ON, scenario.name
            assert sessions[scenario.name].outcome == "completed"
    assert "cancelled" in {session.outcome for session in sessions.values()}


def test_a_key_that_is_not_known_ends_the_demo_with_a_sentence(live_server, token):
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    with pytest.raises(CommandError, match="rejected the key"):
        call_command("demo", url=live_server.url, key=wrong, rounds=1, speed=FAST)
