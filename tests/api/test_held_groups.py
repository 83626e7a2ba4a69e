"""Held calls in number, through the API: equal holds are one group, one decision, and one undo."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import AllowedCall, Approval, AuditEntry, Incident, Session
from detection.services.approvals import group_decisions
from detection.services.audit import Actor
from detection.services.errors import Conflict
from tests.support.threads import all_results, in_thread


@pytest.fixture
def asking(api):
    api.put("/overrides", {"values": {"mode": "ask", "once_per_round": False}})
    return api


def hold(api, *sessions, tool="search_web", arguments=None, agent="finance"):
    """Repeat one call in each session until it is held; the ids of the approvals."""
    for session in sessions:
        for _ in range(4):
            answer = api.call(session, tool, arguments, agent=agent).json()
        assert answer["verdicts"][0]["decision"] == "hold", answer
    return [*Approval.objects.filter(state="open").order_by("pk").values_list("public_id", flat=True)]


def groups(api, **query):
    return api.get("/approvals/groups", **query).json()["items"]


def decide(api, group, choice="skip", **more):
    return api.post(f"/approvals/groups/{group}/decision", {"choice": choice, **more})


def test_thirty_holds_of_one_loop_are_one_group_and_one_decision(asking):
    sessions = [f"s-{number}" for number in range(30)]
    hold(asking, *sessions)
    (group,) = groups(asking)
    assert (group["held_by"], group["approvals"], group["sessions"], group["calls"]) == ("loop", 30, 30, 30)
    assert (group["tools"], group["agents"], group["variants"]) == (["search_web"], ["finance"], 1)
    assert (group["kinds"], group["unattended"], group["session"]) == (["repeat"], ["block"], "s-0")
    assert group["group"] == asking.get("/loops").json()["items"][0]["id"]
    assert group["arguments"] == '{"q":"reset"}'
    assert len(asking.get("/approvals", q=f"group:{group['group']} is:open", limit=100).json()["items"]) == 30
    done = decide(asking, group["group"])
    assert done.status_code == 200, done.text
    assert {name: done.json()[name] for name in ("decided", "already_decided", "expired", "withdrawn", "left")} == {
        "decided": 30, "already_decided": 0, "expired": 0, "withdrawn": 0, "left": 0,
    }  # fmt: skip
    assert groups(asking) == []
    assert set(Approval.objects.values_list("choice", "state", "decision")) == {("skip", "decided", "block")}
    entry = AuditEntry.objects.get(action__startswith="approval.")
    assert (entry.action, entry.subject, entry.after["count"]) == (
        "approval.decide_group",
        done.json()["id"],
        30,
    )


def test_a_call_that_is_held_after_the_decision_waits_for_its_own(asking):
    hold(asking, "s-1", "s-2")
    (group,) = groups(asking)
    assert decide(asking, group["group"], "allow_once").json()["decided"] == 2
    (late,) = hold(asking, "s-3")
    assert asking.get(f"/approvals/{late}").json()["state"] == "open"
    assert [(one["group"], one["approvals"]) for one in groups(asking)] == [(group["group"], 1)]


def test_a_group_is_of_one_loop(asking):
    hold(asking, "s-1", "s-2")
    hold(asking, "s-3", tool="delete_branch")
    first, second = groups(asking)
    assert [first["approvals"], second["approvals"]] == [2, 1]
    decide(asking, first["group"])
    assert [one["tools"] for one in groups(asking)] == [["delete_branch"]]


def test_groups_are_filtered_and_paged(asking):
    for number, tool in enumerate(("search_web", "read_file", "run_sql")):
        hold(asking, f"s-{number}", tool=tool)
    assert [one["tools"] for one in groups(asking, tool="read_file")] == [["read_file"]]
    assert [one["tools"] for one in groups(asking, q="session:s-2")] == [["run_sql"]]
    found, cursor = [], ""
    while cursor is not None:
        page = asking.get("/approvals/groups", limit=1, **({"cursor": cursor} if cursor else {})).json()
        found += [tool for one in page["items"] for tool in one["tools"]]
        cursor = page["next_cursor"]
    assert found == ["search_web", "read_file", "run_sql"]
    foreign = asking.get("/approvals", limit=1).json()["next_cursor"]
    assert asking.get("/approvals/groups", cursor=foreign).status_code == 422


def test_calls_that_a_containment_holds_are_one_group(asking):
    contained = asking.post(
        "/containments", {"scope": "agent", "value": "finance", "reaction": "hold"}
    ).json()
    for session, tool in (("s-1", "search_web"), ("s-2", "read_file")):
        asking.call(session, tool, agent="finance")
    (group,) = groups(asking)
    assert (group["group"], group["held_by"], group["tools"]) == (
        contained["id"], "containment", ["read_file", "search_web"],
    )  # fmt: skip
    refused = decide(asking, group["group"], "exempt")
    assert (refused.status_code, refused.json()["code"]) == (422, "contained")
    assert Approval.objects.filter(state="open").count() == 2
    assert decide(asking, group["group"], "allow_once").json()["decided"] == 2


def test_calls_without_a_loop_are_grouped_by_the_call(asking):
    hold(asking, "s-1", "s-2", arguments={"q": "same"})
    hold(asking, "s-3", arguments={"q": "other"})
    Approval.objects.update(incident=None)
    first, second = groups(asking)
    assert [(one["held_by"], one["approvals"]) for one in (first, second)] == [("call", 2), ("call", 1)]
    assert decide(asking, first["group"]).json()["decided"] == 2
    assert [one["group"] for one in groups(asking)] == [second["group"]]


def test_a_decision_is_undone_as_far_as_no_agent_has_it(asking):
    received, *others = hold(asking, "s-1", "s-2", "s-3")
    (group,) = groups(asking)
    done = decide(asking, group["group"]).json()
    assert done["undo_until"] > timezone.now().isoformat()
    assert asking.get(f"/approvals/{received}").json()["decision"] == "block"  # its agent has it now
    undone = asking.post(f"/approvals/answers/{done['id']}/undo")
    assert undone.json() == {"id": done["id"], "reopened": 2, "handed_out": 1, "changed": 0}
    assert [asking.get(f"/approvals/{one}").json()["state"] for one in (received, *others)] == [
        "decided", "open", "open",
    ]  # fmt: skip
    assert Session.objects.filter(state="held").count() == 2
    again = asking.post(f"/approvals/answers/{done['id']}/undo")
    assert (again.status_code, again.json()["code"]) == (409, "nothing_to_undo")
    assert AuditEntry.objects.get(action="approval.undo_group").after == {"count": 2}
    # They are decided once more, and the deadline is the old one.
    assert decide(asking, group["group"], "allow_once").json()["decided"] == 2


def test_an_allowed_call_is_held_again_in_all_figures(asking):
    hold(asking, "s-1")
    before = Session.objects.get().blocked_count, Incident.objects.get().calls_blocked
    done = decide(asking, groups(asking)[0]["group"], "allow_once").json()
    assert asking.get("/sessions/s-1").json()["state"] == "running"
    asking.post(f"/approvals/answers/{done['id']}/undo")
    assert asking.get("/sessions/s-1").json()["state"] == "held"
    assert (Session.objects.get().blocked_count, Incident.objects.get().calls_blocked) == before
    assert not AllowedCall.objects.exists()
    (waiting,) = Approval.objects.values_list("public_id", flat=True)
    asking.post(f"/approvals/{waiting}/decision", {"choice": "skip"})
    assert (Session.objects.get().blocked_count, Incident.objects.get().calls_blocked) == before


def test_an_answer_whose_agent_went_on_stays(asking):
    hold(asking, "s-1")
    done = decide(asking, groups(asking)[0]["group"], "allow_once").json()
    asking.call("s-1", agent="finance")
    refused = asking.post(f"/approvals/answers/{done['id']}/undo")
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_undo")
    assert "reached the agent" in refused.json()["detail"]
    assert not Approval.objects.filter(state="open").exists()


@pytest.mark.parametrize("what", ["deadline", "stopped", "old", "other", "choice"])
def test_what_cannot_be_undone_stays(what, asking, with_scopes):
    hold(asking, "s-1")
    done = decide(asking, groups(asking)[0]["group"], "disable" if what == "choice" else "skip").json()
    assert (done["undo_until"] is None) == (what == "choice")
    if what == "deadline":
        Approval.objects.update(deadline=timezone.now())
    elif what == "stopped":
        asking.post("/sessions/s-1/stop", {})
    elif what == "old":
        Approval.objects.update(decided_at=timezone.now() - timedelta(minutes=11))
    by = with_scopes("admin") if what == "other" else asking
    refused = by.post(f"/approvals/answers/{done['id']}/undo")
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_undo")
    assert Approval.objects.get().state == "decided"


def test_an_agent_that_makes_the_call_again_has_the_decision(asking):
    hold(asking, "s-1")
    Approval.objects.update(retry_keys=[Approval.objects.get().call_key])
    done = decide(asking, groups(asking)[0]["group"]).json()
    verdict = asking.call("s-1", agent="finance").json()["verdicts"][0]
    assert verdict["decision"] == "block", verdict
    assert Approval.objects.get(public_id=verdict["approval"]["id"]).delivered_at is not None
    assert asking.post(f"/approvals/answers/{done['id']}/undo").status_code == 409


def test_who_comes_second_hears_it(asking, with_scopes):
    one, _ = hold(asking, "s-1", "s-2")
    (group,) = groups(asking)
    asking.post(f"/approvals/{one}/decision", {"choice": "allow_once"})
    assert decide(asking, group["group"]).json()["decided"] == 1
    late = decide(with_scopes("admin"), group["group"], "allow_once")
    assert (late.status_code, late.json()["code"]) == (409, "already_decided")
    assert set(Approval.objects.values_list("choice", flat=True)) == {"allow_once", "skip"}


@pytest.mark.promise("SEC-34")
@pytest.mark.parametrize(
    "body", [{}, {"choice": "maybe"}, {"choice": "raise"}, {"choice": "stop", "remember": True}, {"choice": "skip", "more": 1}]
)  # fmt: skip
def test_an_invalid_decision_decides_none(body, asking):
    hold(asking, "s-1", "s-2")
    refused = asking.post(f"/approvals/groups/{groups(asking)[0]['group']}/decision", body)
    assert refused.status_code == 422
    assert Approval.objects.filter(state="open").count() == 2


def test_a_group_can_be_stopped_and_remembered(asking):
    hold(asking, "s-1", "s-2")
    assert decide(asking, groups(asking)[0]["group"], "skip", remember=True).json()["decided"] == 2
    (row,) = asking.get("/approvals/remembered").json()["items"]
    assert (row["tool"], row["agent"], row["choice"]) == ("search_web", "finance", "skip")
    asking.delete(f"/approvals/remembered/{row['id']}")
    hold(asking, "s-3", "s-4")
    assert decide(asking, groups(asking)[0]["group"], "stop").json()["decided"] == 2
    assert {asking.get(f"/sessions/{one}").json()["state"] for one in ("s-3", "s-4")} == {"stopping"}


def test_groups_of_another_project_do_not_exist(asking, as_other, with_scopes):
    hold(asking, "s-1", "s-2")
    (group,) = groups(asking)
    assert groups(as_other) == []
    assert decide(as_other, group["group"]).status_code == 404
    agent = with_scopes("guard", "ingest", "read")
    assert decide(agent, group["group"]).status_code == 403
    done = decide(asking, group["group"]).json()
    assert as_other.post(f"/approvals/answers/{done['id']}/undo").status_code == 404
    assert agent.post(f"/approvals/answers/{done['id']}/undo").status_code == 403
    assert decide(asking, "loop_none").status_code == 404
    assert not Approval.objects.filter(state="open").exists()


@pytest.mark.servers
@pytest.mark.django_db(transaction=True)
def test_two_people_decide_each_call_once(asking, project):
    hold(asking, *(f"s-{number}" for number in range(8)))
    group = groups(asking)[0]["group"]
    start = threading.Barrier(2)

    def answer(name, choice):
        start.wait(30)
        try:
            return group_decisions.decide(project.pk, group, choice, Actor(name)).decided
        except Conflict:
            return 0

    won = all_results([in_thread(answer, *pair) for pair in (("ana", "skip"), ("ben", "allow_once"))])
    assert sum(won) == 8
    decided = [*Approval.objects.values_list("decided_by", "choice")]
    assert [decided.count(("ana", "skip")), decided.count(("ben", "allow_once"))] == won
    entries = AuditEntry.objects.filter(action="approval.decide_group")
    assert sum(entry.after["count"] for entry in entries) == 8
