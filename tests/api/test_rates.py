"""`GET /rates`: loops and costs per 1,000 calls, with intervals that show how sure this is."""

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from detection.api.routes import rates
from detection.models import Incident, Session
from detection.services.maintenance import hourly_counts
from tests.support.past import move_back
from tests.support.projects import make_member, make_project


def play(api, name, calls, *, loops=0, agent="triage", tool="read_file", **about):
    """Make different calls, and repeat one of them until it is found, once in each of some further sessions."""
    for number in range(calls):
        api.call(name, tool=tool, arguments={"n": number}, agent=agent, **about)
    for number in range(loops):
        api.loop(f"{name}-loop-{number}", 4, tool=tool, agent=agent, **about)
    hourly_counts.count_calls()


def rows(api, by, **more):
    answer = api.get("/rates", by=by, **more)
    assert answer.status_code == 200, answer.text
    return {row["key"]: row for row in answer.json()["items"]}


def test_loops_per_1000_calls_have_an_interval_by_every_grouping(api):
    play(api, "a", 32, loops=2, agent="triage", model="gpt-5", tool="read_file")
    play(api, "b", 20, agent="coder", model="qwen", tool="write_file")
    total = rows(api, "total")[""]
    assert (total["sessions"], total["calls"], total["loops"]) == (4, 60, 2)
    triage, coder = rows(api, "agent")["triage"], rows(api, "agent")["coder"]
    assert (triage["calls"], triage["loops"], triage["loops_per_1000_calls"]) == (40, 2, 50.0)
    # Wilson's interval of 2 of 40, and of 0 of 20.
    assert (triage["loops_interval"]["low"], triage["loops_interval"]["high"]) == pytest.approx(
        (13.8, 165.0), abs=0.1
    )
    assert (coder["loops_per_1000_calls"], coder["loops_interval"]["low"]) == (0.0, 0.0)
    assert coder["loops_interval"]["high"] == pytest.approx(161.1, abs=0.1)
    assert {key: row["loops"] for key, row in rows(api, "model").items()} == {"gpt-5": 2, "qwen": 0}
    assert {key: (row["calls"], row["loops"]) for key, row in rows(api, "tool").items()} == {
        "read_file": (40, 2),
        "write_file": (20, 0),
    }
    detector = rows(api, "detector")["repeat"]
    assert (detector["calls"], detector["loops"]) == (60, 2)
    assert {key: row["calls"] for key, row in rows(api, "integration").items()} == {"guard": 60}
    assert {key: row["calls"] for key, row in rows(api, "project").items()} == {"support": 60}


def test_what_is_no_loop_does_not_count(api):
    play(api, "a", 5, loops=2)
    incident = Incident.objects.order_by("pk").first()
    body = {"where": "run", "run": incident.public_id}
    assert api.post(f"/loops/{incident.loop.public_id}/fine", body).status_code == 200
    assert rows(api, "total")[""]["loops"] == 1


def test_costs_per_1000_calls_vary_between_sessions(api):
    for number, cost in enumerate((0.01, 0.02, 0.03)):
        for call in range(4):
            api.post(
                "/events",
                {"events": [{"type": "call", "session": f"s-{number}", "call_id": f"c{call}", "tool": "t",
                             "arguments": {"n": call}, "usage": {"cost_usd": cost}}]},
            )  # fmt: skip
    Session.objects.update(call_count=4)
    for number, cost in enumerate((0.04, 0.08, 0.12)):
        Session.objects.filter(external_id=f"s-{number}").update(cost_usd=cost)
    total = rows(api, "total")[""]
    assert (total["calls"], total["cost_usd"]) == (12, pytest.approx(0.24))
    assert total["cost_per_1000_calls"] == pytest.approx(20.0)
    # Mean 0.08 a session, standard deviation 0.04, error 0.04 / sqrt(3): 20 +- 1.96 * 5.77.
    assert total["cost_interval"]["low"] == pytest.approx(20 - 11.32, abs=0.01)
    assert total["cost_interval"]["high"] == pytest.approx(20 + 11.32, abs=0.01)
    assert rows(api, "tool").get("t", {"cost_usd": None})["cost_usd"] is None


def test_the_period_before_is_beside_it(api):
    play(api, "old", 10, loops=1)
    move_back(Session.objects, timedelta(days=10), "last_event_at")
    play(api, "new", 20)
    row = rows(api, "agent")["triage"]
    assert (row["calls"], row["loops"], row["before"]["calls"], row["before"]["loops"]) == (20, 0, 14, 1)
    assert row["before"]["loops_per_1000_calls"] == pytest.approx(1000 / 14)
    # A longer period has both in it.
    start = (timezone.now() - timedelta(days=20)).isoformat()
    assert rows(api, "agent", **{"from": start})["triage"]["calls"] == 34


def test_two_groups_are_compared(api):
    play(api, "a", 8, loops=8, agent="often")
    play(api, "b", 200, loops=1, agent="rarely")
    play(api, "c", 5, agent="new")

    def compared(first, second):
        return api.get("/rates/comparison", by="agent", first=first, second=second).json()

    found = compared("often", "rarely")
    assert found["differs"] is True
    assert found["ratio"] == pytest.approx((8 / 40) / (1 / 204))
    assert found["ratio_interval"]["low"] > 1
    assert found["words"].startswith("often loops about 41 times as often as rarely, ")
    assert compared("rarely", "often")["ratio"] == pytest.approx(1 / found["ratio"])
    assert compared("rarely", "often")["words"] == found["words"]
    found = compared("rarely", "new")
    assert (found["differs"], found["ratio"]) == (False, None)
    assert found["words"] == "No difference can be seen in 5 calls."
    assert compared("often", "unknown")["words"] == "No difference can be seen in 0 calls."
    assert compared("often", "unknown")["ratio_interval"] is None


def test_a_project_sees_its_own_rates(api, as_other):
    play(api, "a", 5, loops=1)
    assert rows(as_other, "agent") == {}
    assert rows(as_other, "total")[""]["calls"] == 0


def test_demo_sessions_count_when_they_are_wanted(api):
    play(api, "a", 5)
    Session.objects.update(is_demo=True)
    assert rows(api, "total")[""]["calls"] == 0
    assert rows(api, "total", demo="true")[""]["calls"] == 5


@pytest.mark.parametrize(
    "query",
    [
        {"by": "moon"}, {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, {"from": "2020-01-01T00:00:00Z"},
        {"from": "1980-01-01T00:00:00Z", "to": "1980-01-02T00:00:00Z"}, {"q": "agent:x"},
    ],
)  # fmt: skip
def test_wrong_periods_and_groupings_are_refused(api, query):
    assert api.get("/rates", **query).status_code == 422


def test_all_projects_shows_those_that_the_person_may_see(api, project, as_other, client):
    play(api, "a", 5, loops=1)
    play(as_other, "b", 5, loops=1)
    locked = make_project("locked")
    person = make_member(project, "viewer")
    locked.memberships.create(user=person, role="viewer")
    locked.requires_second_factor = True
    locked.save()
    client.force_login(person)
    Session.objects.create(project=locked, external_id="x", call_count=5)
    page = client.get(reverse("console:projects")).content.decode()
    rows = page.partition('aria-label="Projects"')[2].partition("</table>")[0].split("<tr>")
    (support,), (asks,) = ([row for row in rows if f">{name}<" in row] for name in ("Support", "Locked"))
    assert "111.1" in " ".join(support.split())  # 1 loop in 9 calls
    assert "rivals" not in page
    assert "Asks for a second factor" in asks
    assert not re.search(r"\?board=rate", asks)
    no_rates = "so calls and rates are omitted"
    for query, has_rates in (("", True), ("?q=agent:triage", True), ("?q=tool:x", False)):
        page = client.get(f"/p/support/insights{query}").content.decode()
        assert (no_rates not in page) == has_rates, query


def test_groups_beyond_those_that_are_listed_are_compared_and_shown_with_their_numbers(api, monkeypatch):
    monkeypatch.setattr(rates, "MAX_ROWS", 1)
    play(api, "a", 8, loops=1, agent="often")
    play(api, "b", 4, agent="rarely")
    play(api, "c", 2, agent="never")
    assert [*rows(api, "agent")] == ["often"]
    found = api.get("/rates/comparison", by="agent", first="rarely", second="never").json()
    assert found["words"] == "No difference can be seen in 2 calls."


def test_two_agents_are_compared_on_the_tools_that_both_used(api):
    play(api, "a", 6, loops=1, agent="one", tool="search")
    play(api, "only", 9, agent="one", tool="only_one")
    play(api, "b", 8, agent="two", tool="search")

    def compared(**more):
        found = api.get("/rates/comparison", by="agent", first="one", second="two", **more)
        assert found.status_code == 200
        one, two = found.json()["first"], found.json()["second"]
        return one["calls"], one["loops"], one["sessions"], two["calls"], two["loops"], found.json()["tools"]

    assert compared() == (19, 1, 3, 8, 0, None)
    assert compared(tools="shared") == (10, 1, 2, 8, 0, 1)
    refused = api.get("/rates/comparison", by="tool", first="a", second="b", tools="shared")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_tools")
