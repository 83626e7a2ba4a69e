"""One loop in a session is one incident, however many detectors see it."""

from collections import Counter

import pytest

from detection.engine.scopes import PROJECT, Scope
from detection.models import Session
from detection.services.policies import overrides
from detection.services.sessions.evaluation import evaluate
from tests.support import truth
from tests.support.agents import OPERATOR


def incidents(api, **query):
    cursor = ""
    while cursor is not None:
        page = api.get("/incidents", limit=500, **({"cursor": cursor} if cursor else {}), **query).json()
        yield from page["items"]
        cursor = page["next_cursor"]


@pytest.mark.parametrize(
    ("preset", "count"),
    [("standard", 36), ("strict", 36), pytest.param("standard", 300, marks=pytest.mark.long)],
)
def test_every_loop_is_one_incident_and_honest_work_is_none(api, project, preset, count):
    overrides.save_override(project.pk, PROJECT, {"preset": preset}, OPERATOR, "for the test")
    limit = {"budget_enabled": True, "budget_max_calls": 4}
    overrides.save_override(
        project.pk, Scope("agent", agent=truth.LIMITED_AGENT), limit, OPERATOR, "for the test"
    )
    expected, calls = {}, {}
    for name, shape in truth.sessions(count):
        expected[name] = truth.SHAPES[shape].loops
        events = [*truth.SHAPES[shape].events(name)]
        calls[name] = sum(event["type"] == "call" for event in events)
        assert api.post("/events", {"events": events}).status_code == 202
        evaluate(Session.objects.get(external_id=name).key)

    found: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    detectors = set()
    for row in incidents(api):
        found[row["session"]] += 1
        counted[row["session"]] += row["counted_calls"]
        detectors.add(len(row["found_by"]))
        assert row["found_by"][0] == row["kind"]
        findings = api.get(f"/incidents/{row['id']}").json()["findings"]
        assert [*dict.fromkeys(one["kind"] for one in findings)] == row["found_by"]
    assert {name: found[name] for name in expected} == expected
    assert all(counted[name] <= calls[name] for name in calls)
    assert max(detectors) > 1
