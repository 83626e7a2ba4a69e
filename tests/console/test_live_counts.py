"""Tiles, tabs, the list and the API count the same sessions under the same filters."""

import itertools
import random
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.filtering import language
from detection.filtering.language import parse
from detection.models import Session, StoppedByKind
from detection.models.session_state import STOP_STATES, STORED_STATES, SessionState, is_in_loop, shown_state
from detection.selectors.filters import given_terms
from tests.api.conftest import Api, speaking
from tests.console.scenes import make_world, tabs_for, tabs_of
from tests.support.alerts import make_incident
from tests.support.projects import make_key

pytestmark = pytest.mark.django_db
AGENTS, MODELS, TOOLS, QUERIES = (
    ("", "triage", "coder"),
    ("", "gpt-5"),
    ("", "read_file"),
    ("", "s-1", "TRI", "%"),
)


def random_session(project, number, chance):
    state = chance.choice(STORED_STATES)
    now = timezone.now()
    stopped = {"stopped_by_kind": chance.choice(StoppedByKind.values[1:]), "stopped_at": now}
    return Session(
        project=project,
        external_id=f"s-{number}",
        state=state,
        agent=chance.choice(AGENTS),
        model=chance.choice(MODELS),
        last_tool=chance.choice(("read_file", "grep")),
        last_event_at=now - timedelta(seconds=chance.choice((0, 10, 100, 610, 4000))),
        last_loop_call_at=now + timedelta(seconds=chance.choice((600, -300))) if state == "looping" else None,
        **(stopped if state in STOP_STATES else {}),
    )


@pytest.mark.promise("REL-32")
def test_tiles_tabs_list_and_api_agree_under_every_filter():
    world = make_world()
    project, chance = world.project, random.Random(8)
    Session.objects.all().delete()
    Session.objects.bulk_create(random_session(project, number, chance) for number in range(60))
    with speaking() as wsgi_client:
        api = Api(wsgi_client, make_key(project))
        # These 16 of the 48 combinations contain every pair of values.
        for agent, model, tool, q in [*itertools.product(AGENTS, MODELS, TOOLS, QUERIES)][::3]:
            named = {"agent": agent, "model": model, "tool": tool}
            filters = {**named, "q": q}
            counts = api.get("/session-counts", **filters).json()
            assert counts.pop("is_capped") is False
            listed = {
                state: len(api.get("/sessions", state=state, limit=500, **filters).json()["items"])
                for state in SessionState.values
            }
            loops = {name: counts.pop(name) for name in ("looping_now", "in_loop")}
            assert counts == {"all": sum(listed.values()), **listed}, filters
            assert listed["looping"] == loops["looping_now"], filters
            in_loop = api.get("/sessions", limit=500, **{**filters, "q": f"{q} in_loop:yes"}).json()["items"]
            assert [one["in_loop"] for one in in_loop] == [True] * loops["in_loop"], filters
            for part in ("sessions", "session/tabs"):
                page = world.client.get(
                    f"{world.base}/{part}", {"q": language.write(parse(f"{q} is:ended") + given_terms(named))}
                ).content.decode()
                assert tabs_of(page) == tabs_for(counts), (part, filters)


def test_metrics_count_the_sessions_of_the_last_hour_by_the_same_states():
    world = make_world()
    chance = random.Random(9)
    Session.objects.all().delete()
    Session.objects.bulk_create(random_session(world.project, number, chance) for number in range(40))
    recent = [
        shown_state(row)
        for row in Session.objects.filter(last_event_at__gt=timezone.now() - timedelta(hours=1))
    ]
    metrics = world.client.get("/metrics").content.decode()
    told = dict(re.findall(r'loopguard_sessions\{state="(\w+)"\} (\d+)\.0', metrics))
    assert {state: int(count) for state, count in told.items()} == {
        state: recent.count(SessionState(state)) for state in SessionState.values
    }
    loops = dict(re.findall(r'loopguard_sessions_in_loops\{which="(\w+)"\} (\d+)\.0', metrics))
    in_loop = sum(is_in_loop(row) for row in Session.objects.all())
    assert loops == {"looping_now": str(recent.count(SessionState.LOOPING)), "in_loop": str(in_loop)}


def test_metrics_tell_recovery_confidence_and_loop_cost_with_bounded_labels(monkeypatch):
    monkeypatch.setattr("detection.selectors.metric_totals.MAX_LABEL_VALUES", 2)
    world = make_world()
    for number in range(4):
        fields = {
            "tool": f"tool_{min(number, 2)}",
            "cost_usd": 2,
            "recovered": True,
            "was_guarded": True,
            "evidence": {"reactions": {"block": {"changed": 1}}},
            "confidence": 0.5,
        }
        make_incident(world.project, kind="cycle", calls_digest=str(number), **fields)
    metrics = world.client.get("/metrics").content.decode()
    project = f'project="{world.project.slug}"'
    assert f'loopguard_incidents_by_recovery{{kind="cycle",{project},recovered="true"}} 4.0' in metrics
    assert f'loopguard_incident_confidence{{kind="cycle",{project}}} 0.5' in metrics
    assert f'loopguard_loop_cost_usd_by_tool{{{project},tool="tool_2"}} 4.0' in metrics
    assert f'loopguard_incidents_by_tool{{{project},tool="other"}}' in metrics
