"""Families of sessions, over POST /api/v1/guard and /events: repeats, limits and hand-offs that no single session shows."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from detection.console import permalinks
from detection.models import Incident, LimitNotice, Session, SessionFamily
from detection.services.retention import erasure, retention
from detection.services.sessions.evaluation import evaluate
from tests.support.agents import OPERATOR
from tests.support.projects import make_member

GREP = {"tool": "grep", "arguments": {"pattern": "parse_header"}}


class Fleet:
    """Sub-agents of one parent; call ids count up by themselves."""

    def __init__(self, api, **settings):
        self.api, self.number = api, 0
        api.put("/overrides", {"values": settings})

    def asks(self, session, call=GREP, parent="parent", result="no such symbol", is_error=False, **more):
        self.number += 1
        call_id = f"c{self.number}"
        body = {"session": session, "parent_session": parent, "calls": [call | {"call_id": call_id}]} | more
        verdict = self.api.post("/guard", body).json()["verdicts"][0]
        if result is not None and verdict["decision"] in ("allow", "warn"):
            done = {"call_id": call_id, "content": result, "is_error": is_error}
            self.api.post("/guard", {"session": session, "results": [done]})
        return verdict

    def found(self, kind):
        return [
            (one["session"], one["tool"], one["count"])
            for one in self.api.get("/incidents", q=f"detector:{kind}").json()["items"]
        ]


def test_twelve_identical_calls_in_four_children_are_found_under_the_ladder_of_the_family(api):
    fleet = Fleet(api, family_enabled=True, family_ladder="block")
    verdicts = [fleet.asks(f"child-{n // 3}") for n in range(12)]

    assert {one["decision"] for one in verdicts[:8]} == {"allow", "warn"}, (
        "each child by itself is warned at most"
    )
    first = next(one for one in verdicts if one["decision"] == "block")
    assert (first["decision"], first["finding"]["kind"], first["finding"]["count"]) == ("block", "family", 6)
    assert verdicts.index(first) == 8
    assert "repeated 6 times by the sessions of this family" in first["message"]
    incident = Incident.objects.filter(kind="family").earliest("pk")
    assert incident.evidence["detail"] == {"tool": "grep", "sessions": 4, "family": True}
    assert fleet.found("family") == [("parent", "grep", 8)]
    assert incident.evidence["sessions"] == ["child-2", "child-3"]


def test_the_same_twelve_calls_pass_while_families_are_off(api):
    fleet = Fleet(api, spawns_enabled=False)
    assert {fleet.asks(f"child-{n // 3}")["decision"] for n in range(12)} <= {"allow", "warn"}
    assert fleet.found("family") == []
    assert not SessionFamily.objects.exists()


@pytest.mark.parametrize("case", ["once each", "new results", "a change in between", "the user asks again"])
def test_a_family_is_left_alone(api, case):
    fleet = Fleet(api, family_enabled=True)
    for n in range(14):
        if case == "a change in between" and n % 4 == 0:
            edit = {"tool": "write_file", "arguments": {"path": "a.py", "text": str(n)}}
            fleet.asks("writer", edit, result=f"wrote {n} lines")
        if case == "the user asks again" and n % 4 == 0:
            api.post("/events", {"session": "parent", "type": "message", "content": f"Search again, {n}"})
            evaluate(Session.objects.get(external_id="parent").key)
            fleet.asks("parent", {"tool": "plan", "arguments": {"n": n}}, parent=None)
        child = n if case == "once each" else n % 4
        fleet.asks(f"child-{child}", result=f"{n} hits" if case == "new results" else "no such symbol")
    assert fleet.found("family") == []


def test_identical_errors_of_one_tool_are_counted_over_the_family_but_not_those_of_a_provider(api):
    fleet = Fleet(api, family_enabled=True, family_max_errors=5)
    for n in range(5):
        query = {"tool": "search_crm", "arguments": {"q": f"customer {n}"}}
        fleet.asks(f"child-{n}", query, result="401 invalid token", is_error=True)
        fetch = {"tool": "fetch_url", "arguments": {"url": f"https://example.com/{n}"}}
        fleet.asks(f"child-{n}", fetch, result="429 Too Many Requests", is_error=True)
    assert [(tool, count) for _, tool, count in fleet.found("family")] == [("search_crm", 5)]


def test_limits_count_what_all_sessions_used_also_before_the_family_was_known_and_late_usage(api):
    fleet = Fleet(
        api, family_budget_enabled=True, family_budget_max_cost_usd=1.0, family_budget_ladder="stop"
    )
    usage = {"usage": {"cost_usd": 0.3}}
    page = iter(range(100))

    def read(session, **more):
        number = next(page)
        call = {"tool": "read_page", "arguments": {"n": number}} | usage
        return fleet.asks(session, call, result=f"text {number}", **more)["decision"]

    assert read("parent", parent=None) == "allow"
    assert not SessionFamily.objects.exists(), "a session without children"
    assert read("child-1") == "allow"  # 0.6
    assert read("parent", parent=None) == "allow"  # 0.9
    assert LimitNotice.objects.get().kind == "family_budget"
    api.post("/events", {"session": "child-1", "type": "usage", "usage": {"cost_usd": 0.15}})
    evaluate(Session.objects.get(external_id="child-1").key)
    assert read("grandchild", parent="child-1") == "stop"  # 1.35
    assert [one[0] for one in fleet.found("family_budget")] == ["parent"]
    assert SessionFamily.objects.get().name == "parent"
    assert read("stranger", parent=None) == "allow"


def test_a_child_counts_what_its_waiting_parent_has_used_and_the_parent_once(api):
    fleet = Fleet(api, family_budget_enabled=True, family_budget_max_calls=5, family_budget_ladder="stop")
    for n in range(3):
        fleet.asks("parent", {"tool": "plan", "arguments": {"n": n}}, parent=None, result=f"plan {n}")
    assert fleet.asks("child", result="a")["decision"] == "allow"  # the fourth
    fleet.asks("parent", parent=None, result=None)  # the fifth
    assert [one[::2] for one in fleet.found("family_budget")] == [("parent", 4)]

    for n in range(4):
        fleet.asks("other", {"tool": "plan", "arguments": {"n": n}}, parent=None, result=f"plan {n}")
    assert fleet.asks("only child", parent="other")["decision"] == "stop"


def test_agents_that_hand_over_in_a_cycle_within_one_session(api):
    fleet = Fleet(api, handoff_enabled=True, handoff_ladder="block", outcome_enabled=False)
    decisions = []
    for n in range(6):
        agent, tool = (("triage", "find_customer"), ("billing", "find_invoice"))[n % 2]
        call = {"tool": tool, "arguments": {"case": n}}
        decisions.append(fleet.asks("desk", call, None, "not my department", agent=agent)["decision"])
    assert decisions == ["allow"] * 5 + ["block"]
    incident = Incident.objects.get(kind="handoff")
    assert (incident.session_name, incident.count) == ("desk", 3)
    assert incident.evidence["detail"]["agents"] == "billing → triage"


def test_a_cycle_over_sessions_belongs_to_the_parent_that_takes_part_in_it(api):
    fleet = Fleet(api, handoff_enabled=True, outcome_enabled=False, stagnation_enabled=False)
    number = 0
    for lap in range(4):
        for session, parent, agent in (
            ("desk", None, "triage"), ("a", "desk", "billing"), ("desk", None, "triage"), ("b", "desk", "legal"),
        ):  # fmt: skip
            number += 1
            call = {"tool": f"ask_{agent}", "arguments": {"case": number}}
            fleet.asks(session, call, parent, f"{agent} has nothing", agent=agent)
        assert bool(fleet.found("handoff")) == (lap == 3)
    assert fleet.found("handoff") == [("desk", "ask_triage", 3)]


def test_parallel_agents_that_learn_something_hand_nothing_over(api):
    fleet = Fleet(api, handoff_enabled=True)
    for n in range(12):
        call = {"tool": "read_page", "arguments": {"n": n}}
        fleet.asks(f"child-{n % 2}", call, result=f"page {n} tells {n * 31}", agent=f"reader-{n % 2}")
    assert fleet.found("handoff") == []


def test_parents_that_become_known_late_that_are_missing_or_that_form_a_circle(api):
    fleet = Fleet(api, family_enabled=True)
    for n in range(4):
        fleet.asks(f"leaf-{n % 2}", parent="middle")  # `middle` is not stored
    assert [one.name for one in SessionFamily.objects.all()] == ["middle"]
    fleet.asks("middle", {"tool": "plan", "arguments": {}}, parent="top")
    assert [one.name for one in SessionFamily.objects.all()] == ["top"], "merged"
    for n in range(10):
        fleet.asks(f"leaf-{n % 2}", parent="middle")
    assert fleet.found("family")[0][2] >= 6

    for n in range(12):
        fleet.asks(f"round-{n % 3}", parent=f"round-{(n + 1) % 3}")
        fleet.asks("self", parent="self")
    assert [one for one in fleet.found("family") if one[0].startswith(("round", "self"))] == []


def test_more_levels_than_are_counted_and_more_sessions_cost_no_call(api, monkeypatch):
    monkeypatch.setattr("detection.engine.family.MAX_MEMBERS", 4)
    fleet = Fleet(api, family_enabled=True, spawns_enabled=False)
    for n in range(12):
        assert fleet.asks(f"level-{n}", parent=f"level-{n - 1}")["decision"] == "allow"
    for n in range(12):
        assert fleet.asks(f"child-{n}")["decision"] == "allow"
    assert len(SessionFamily.objects.get(name="parent").snapshot) < 2000


def limited(api, **more):
    return Fleet(
        api, family_budget_enabled=True, family_budget_max_calls=6, family_budget_ladder="stop", **more
    )


def read(fleet, session, number, **more):
    call = {"tool": "read_page", "arguments": {"n": number}}
    return fleet.asks(session, call, result=f"text {number * 7919}", **more)


def test_a_limit_of_a_family_is_one_incident_at_its_top_that_names_the_sub_agents(api):
    fleet = limited(api)
    read(fleet, "parent", 0, parent=None)
    verdicts = [read(fleet, f"child-{n % 4}", n) for n in range(1, 13)]
    assert [one["decision"] for one in verdicts] == ["allow"] * 4 + ["stop"] * 8
    assert len({one["incident"] for one in verdicts[4:]}) == 1

    found = api.get(f"/incidents/{verdicts[-1]['incident']}").json()
    assert (found["session"], found["count"], found["calls_blocked"], found["decision"]) == (
        "parent",
        12,
        8,
        "stop",
    )
    assert sorted(found["evidence"]["sessions"]) == ["child-0", "child-1", "child-2", "child-3"]
    assert {one["session"] for one in found["evidence"]["calls"]} == {*found["evidence"]["sessions"]}
    assert Incident.objects.count() == 1
    assert "loop" not in verdicts[-1]["message"].lower()
    assert api.get("/incidents", q="session:parent").json()["items"][0]["id"] == found["id"]
    assert not Session.objects.filter(has_active_incident=True).exists()
    assert not Session.objects.get(external_id="parent").stopped_at


def test_the_others_go_on_after_one_sub_agent_is_stopped(api):
    fleet = Fleet(api, spawns_max_total=5, spawns_ladder="stop")
    start = {"tool": "spawn_agent", "arguments": {"message": "Read page 1"}}
    read(fleet, "lead", 0, parent=None)
    for n in range(4):
        read(fleet, f"child-{n}", n, parent="lead")
    assert fleet.asks("child-0", start, parent="lead")["decision"] == "stop"
    assert [read(fleet, f"child-{n}", n + 9, parent="lead")["decision"] for n in range(1, 4)] == ["allow"] * 3
    assert read(fleet, "lead", 30, parent=None)["decision"] == "allow"
    assert fleet.found("spawns") == [("lead", "spawn_agent", 5)]


def test_a_sub_agent_does_not_wait_for_the_session_at_the_top(api):
    fleet = limited(api)
    for n in range(5):
        read(fleet, f"child-{n % 2}", n)
    top = Session.objects.filter(external_id="parent")
    assert not top.exists(), "what is reported at a session needs no row of it"
    read(fleet, "parent", 9, parent=None)
    before = top.values_list("changed_xid", "state", "last_event_at").get()
    assert read(fleet, "child-0", 10)["decision"] == "stop"
    assert top.values_list("changed_xid", "state", "last_event_at").get() == before
    assert [one[0] for one in fleet.found("family_budget")] == ["parent"]


def test_people_close_it_and_what_continues_is_another_one(api):
    fleet = limited(api)
    verdicts = [read(fleet, f"child-{n % 2}", n) for n in range(7)]
    first = verdicts[-1]["incident"]
    loop_id = api.get(f"/incidents/{first}").json()["loop_id"]
    assert api.post(f"/loops/{loop_id}/done", {}).status_code == 200
    second = read(fleet, "child-0", 8)["incident"]
    assert second != first
    assert {one.ended_at is None for one in Incident.objects.filter(public_id=first)} == {False}


def test_it_ends_when_nobody_was_found_in_it_for_an_hour(api):
    fleet = limited(api)
    for n in range(7):
        read(fleet, f"child-{n % 2}", n)
    retention.end_abandoned()
    assert Incident.objects.get().ended_at is None
    Incident.objects.update(last_seen_at=timezone.now() - timedelta(hours=2))
    retention.end_abandoned()
    assert Incident.objects.get().ended_at is not None


def test_a_held_call_of_a_sub_agent_belongs_to_the_incident_at_the_top(api):
    fleet = Fleet(api, family_budget_enabled=True, family_budget_max_calls=4, family_budget_ladder="ask")
    for n in range(3):
        read(fleet, f"child-{n}", n)
    held = read(fleet, "child-1", 5)
    assert held["decision"] == "hold"
    approval = api.get("/approvals").json()["items"][0]
    assert (approval["session"], approval["incident"]) == ("child-1", held["incident"])
    answer = api.post(f"/approvals/{approval['id']}/decision", {"choice": "allow_once"})
    assert answer.status_code == 200, answer.text
    incident = Incident.objects.get()
    assert (incident.session_name, incident.calls_blocked) == ("parent", 0)


def test_the_incident_is_erased_with_a_sub_agent_that_its_evidence_names(api):
    fleet = limited(api)
    for n in range(7):
        read(fleet, f"child-{n % 2}", n)
    project = Session.objects.get(external_id="child-0").project_id
    erasure.request_erasure(project, "session", "child-1", OPERATOR)
    erasure.run_waiting(lambda: False)
    assert not Incident.objects.exists()


def test_its_page_names_the_sub_agents_and_leads_to_their_calls(api):
    fleet = limited(api)
    read(fleet, "parent", 0, parent=None)
    for n in range(1, 9):
        read(fleet, f"child-{n % 2}", n)
    incident = Incident.objects.get()
    client = Client()
    client.force_login(make_member(incident.project))
    address = permalinks.incident_url(incident.project.slug, incident.public_id)
    page = client.get(address, follow=True).content.decode()
    for name in incident.evidence["sessions"]:
        assert f"/sessions/{name}?call=" in page
    top = client.get(permalinks.session_url(incident.project.slug, "parent") + "?call=0")
    assert incident.public_id in top.content.decode()


@pytest.mark.parametrize("is_top_stored", [True, False])
@pytest.mark.parametrize("when", ["at once", "while it loops", "after the loop"])
def test_a_loop_of_a_family_costs_what_its_calls_cost_however_late_that_is_known(api, when, is_top_stored):
    fleet = Fleet(api, family_enabled=True, family_ladder="block")

    def report(*costs):
        for child, round_name in costs:
            sent = {"type": "usage", "session": child, "round": round_name, "usage": {"cost_usd": 0.5}}
            api.post("/events", sent)
            evaluate(Session.objects.get(external_id=child).key)

    if is_top_stored:
        fleet.asks("parent", {"tool": "plan", "arguments": {}}, parent=None)
    costs = [(f"child-{n // 3}", f"r{n}") for n in range(12)]
    for n, cost in enumerate(costs):
        fleet.asks(cost[0], round=f"r{n}")
        if when == "at once":
            report(cost)
    if when == "after the loop":
        Incident.objects.update(ended_at=timezone.now())
    of_family = Incident.objects.get(is_of_family=True)
    assert (of_family.session is not None) == is_top_stored
    # Of a family of the same names, whose sessions were deleted before these began.
    earlier = Incident.objects.get(pk=of_family.pk)
    earlier.pk, earlier.public_id, earlier.session, earlier.cost_usd = None, "inc_earlier", None, 0
    earlier.ended_at = earlier.last_seen_at = timezone.now() - timedelta(days=90)
    earlier.save()
    if when != "at once":
        report(*costs)
    of_family.refresh_from_db()
    earlier.refresh_from_db()
    assert earlier.cost_usd == 0
    own = Incident.objects.filter(is_of_family=False)
    assert of_family.counted_calls == len(of_family.evidence["counted"]) > 0
    assert float(of_family.cost_usd) == 0.5 * of_family.counted_calls
    assert [float(one.cost_usd) for one in own] == [0.5 * one.counted_calls for one in own]
    assert sum(one.counted_calls for one in [of_family, *own]) == 12, "a call of two loops counts once"


def test_calls_that_an_ended_loop_of_the_family_counts_are_not_counted_again(api):
    fleet, call = Fleet(api, family_enabled=True, family_ladder="warn"), GREP | {"usage": {"cost_usd": 0.5}}
    for n in range(11):
        fleet.asks(f"child-{n // 3}", call)
    assert Incident.objects.filter(is_of_family=True).update(ended_at=timezone.now()) == 1
    fleet.asks("child-3", call)
    found = Incident.objects.all()
    assert any(not one.is_of_family and one.session_name == "child-3" for one in found), "a loop of its own"
    assert sum(one.counted_calls for one in found) == 12
    assert float(sum(one.cost_usd for one in found)) == 6.0
