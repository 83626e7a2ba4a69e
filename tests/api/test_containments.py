"""Containments through the API: each reaction and scope, at each entry point of agents, in both directions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from detection.models import Approval, AuditEntry, Containment, Project, Session
from detection.services.sessions.evaluation import evaluate


def decision(answer):
    (verdict,) = answer.json()["verdicts"]
    return verdict["decision"]


def contain(api, scope="agent", value="support", reaction="stop", **more):
    answer = api.post("/containments", {"scope": scope, "value": value, "reaction": reaction, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def lift(api, containment):
    assert api.delete(f"/containments/{containment['id']}").json()["in_force"] is False


def test_a_stop_of_an_agent_ends_its_sessions_and_nothing_else(api, as_other):
    api.call("a", agent="support")
    api.call("b", agent="research")
    as_other.call("a", agent="support")
    found = contain(api, reason="it deletes orders")
    assert found["reaches"] == {"can_stop": 1, "can_block": 0, "watch_only": 0}
    answer = api.call("a", agent="support")
    assert decision(answer) == "stop"
    text = answer.json()["verdicts"][0]["message"]
    assert "stopped the agent support in LoopGuard (it deletes orders)" in text
    assert "until an operator lifts this" in text
    assert decision(api.call("b", agent="research")) == "allow"
    assert decision(as_other.call("a", agent="support")) == "allow"
    assert api.get("/sessions/a").json()["stopped"]["kind"] == "containment"
    assert api.get("/sessions/b").json()["stopped"] is None


def test_lifting_restores_exactly_what_it_stopped(api):
    for name in ("a", "b", "c"):
        api.call(name, agent="support")
    api.post("/sessions/b/stop")
    found = contain(api)
    states = [api.get(f"/sessions/{name}").json()["state"] for name in ("a", "b", "c")]
    assert states == ["stopping"] * 3
    assert api.post("/sessions/a/resume").json()["code"] == "contained"
    lift(api, found)
    states = [api.get(f"/sessions/{name}").json()["state"] for name in ("a", "b", "c")]
    assert states == ["running", "stopping", "running"]
    assert decision(api.call("a", agent="support")) == "allow"
    assert decision(api.call("b", agent="support")) == "stop"
    assert api.delete(f"/containments/{found['id']}").json()["code"] == "not_in_force"


@pytest.mark.parametrize(
    ("scope", "value", "tool"),
    [
        ("agent", "support", ""), ("model", "gpt-5", ""), ("tool", "search_web", ""), ("tool", "search_*", ""),
        ("agent_tool", "support", "search_web"), ("family", "top", ""), ("project", "", ""),
    ],
)  # fmt: skip
def test_each_scope_covers_what_it_names(api, as_other, scope, value, tool):
    api.call("top", agent="support", model="gpt-5")
    about = {"agent": "support", "model": "gpt-5", "parent_session": "top"}
    others = {"agent": "other", "model": "o-1", "tool": "write_file"}
    assert decision(api.call("sub", **about)) == "allow"
    found = contain(api, scope, value, "block", tool=tool)
    assert decision(api.call("sub", **about)) == "block"
    expected = "block" if scope == "project" else "allow"
    assert decision(api.call("elsewhere", **others)) == expected
    assert decision(as_other.call("sub", **about)) == "allow"
    lift(api, found)
    assert decision(api.call("sub", **about)) == "allow"


def test_a_tool_that_is_blocked_leaves_the_other_tools_of_the_agent(api):
    contain(api, "agent_tool", "support", "block", tool="send_mail")
    assert decision(api.call("a", agent="support", tool="send_mail")) == "block"
    assert decision(api.call("a", agent="support", tool="search_web")) == "allow"
    assert decision(api.call("a", agent="other", tool="send_mail")) == "allow"


def test_a_key_covers_what_came_with_it(api, with_scopes, key):
    other = with_scopes("guard", "read")
    api.call("a")
    other.call("b")
    found = contain(api, "key", key[:13], "stop")
    assert found["reaches"]["can_stop"] == 1
    assert decision(api.call("a")) == "stop"
    assert decision(other.call("b")) == "allow"
    unknown = api.post("/containments", {"scope": "key", "value": "lg_unknown", "reaction": "stop"})
    assert unknown.json()["code"] == "unknown_key"


def test_sessions_that_start_later_are_covered_unless_they_are_left_out(api):
    api.call("old", agent="support")
    found = contain(api, include_new=False)
    assert decision(api.call("old", agent="support")) == "stop"
    assert decision(api.call("new", agent="support")) == "allow"
    lift(api, found)
    contain(api)
    assert decision(api.call("newest", agent="support")) == "stop"


def test_it_ends_at_its_time(api, monkeypatch):
    api.call("a", agent="support")
    contain(api, until=(timezone.now() + timedelta(minutes=5)).isoformat())
    assert decision(api.call("a", agent="support")) == "stop"
    later = timezone.now() + timedelta(minutes=6)
    monkeypatch.setattr("detection.clock.now", lambda: later)
    monkeypatch.setattr("time.time", later.timestamp)
    assert decision(api.call("a", agent="support")) == "allow"
    assert api.get("/containments", in_force="true").json()["items"] == []
    assert len(api.get("/containments", in_force="false").json()["items"]) == 1
    assert api.get("/sessions/a").json()["state"] == "running"


def test_a_held_agent_waits_for_a_person(api):
    api.call("a", agent="support")
    found = contain(api, reaction="hold", reason="audit")
    answer = api.call("a", agent="support").json()["verdicts"][0]
    assert answer["decision"] == "hold"
    assert "put on hold the agent support in LoopGuard (audit)" in answer["message"]
    approval = answer["approval"]["id"]
    refused = api.post(f"/approvals/{approval}/decision", {"choice": "exempt"})
    assert refused.json()["code"] == "contained", refused.text
    decided = api.post(f"/approvals/{approval}/decision", {"choice": "allow_once"}).json()
    assert decided["decision"] == "allow"
    held = api.call("a", agent="support").json()["verdicts"][0]
    assert held["decision"] == "hold"
    lift(api, found)
    released = Approval.objects.get(public_id=held["approval"]["id"])
    assert (released.decision, released.reason) == ("allow", "containment_lifted")
    assert decision(api.call("a", agent="support")) == "allow"


def test_calls_on_hold_are_withdrawn_and_cannot_be_answered(api):
    api.put("/overrides", {"values": {"mode": "ask", "attended": True, "max_repeats": 3}})
    for name, agent in (("a", "support"), ("b", "research")):
        held = [api.call(name, agent=agent).json()["verdicts"][0] for _ in range(3)][-1]
        assert held["decision"] == "hold"
    contain(api)
    found = {row.agent: row for row in Approval.objects.all()}
    assert (found["support"].state, found["support"].decision) == ("withdrawn", "stop")
    assert "stopped the agent support" in found["support"].message
    assert found["research"].state == "open"
    late = api.post(f"/approvals/{found['support'].public_id}/decision", {"choice": "allow_once"})
    assert late.json()["code"] == "approval_withdrawn"


def test_reported_calls_are_only_recorded(api):
    def report(number):
        event = {"type": "call", "session": "w", "agent": "support", "tool": "t", "call_id": f"c{number}"}
        assert api.post("/events", event).status_code == 202
        evaluate(Session.objects.get(external_id="w").key)

    report(1)
    found = contain(api)
    assert found["reaches"] == {"can_stop": 0, "can_block": 0, "watch_only": 1}
    assert Session.objects.get(external_id="w").would_have_stopped_at_call is None
    report(2)
    session = Session.objects.get(external_id="w")
    assert (session.call_count, session.blocked_count) == (2, 0)
    assert session.would_have_stopped_at_call == 2
    assert (session.state, session.stopped_by_kind) == ("stop_unenforced", "containment")
    assert session.ran_since_stop == 1


def test_a_preview_counts_and_changes_nothing(api, project):
    api.call("a", agent="support")
    version = Project.objects.get(pk=project.pk).policy_version
    body = {"scope": "agent", "value": "support", "reaction": "stop"}
    answer = api.request("POST", "/containments", json=body, params={"preview": "true"})
    assert (answer.status_code, answer.json()["reaches"]["can_stop"]) == (200, 1)
    assert not Containment.objects.exists()
    assert not AuditEntry.objects.filter(action__startswith="containment").exists()
    assert Project.objects.get(pk=project.pk).policy_version == version
    assert decision(api.call("a", agent="support")) == "allow"


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({"scope": "server", "reaction": "stop"}, "staff_only", "scope"),
        ({"scope": "agent", "reaction": "stop"}, "missing", "value"),
        ({"scope": "project", "value": "x", "reaction": "stop"}, "invalid_value", "value"),
        ({"scope": "agent_tool", "value": "x", "reaction": "stop"}, "missing", "tool"),
        ({"scope": "tool", "value": "**", "reaction": "stop"}, "invalid_value", "value"),
        (
            {"scope": "agent", "value": "x", "reaction": "stop", "until": "2020-01-01T00:00:00Z"},
            "out_of_range",
            "until",
        ),
    ],
)
def test_what_cannot_be_contained_is_refused(api, body, code, path):
    answer = api.post("/containments", body)
    assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, code, path)
    assert not Containment.objects.exists()


def test_another_project_neither_sees_nor_lifts_it(api, as_other, with_scopes):
    found = contain(api)
    assert as_other.get("/containments").json()["items"] == []
    assert as_other.delete(f"/containments/{found['id']}").status_code == 404
    assert with_scopes("guard", "read").delete(f"/containments/{found['id']}").status_code == 403
    assert [one["id"] for one in api.get("/containments").json()["items"]] == [found["id"]]


def test_the_audit_has_both_ends(api):
    found = contain(api, reason="why")
    lift(api, found)
    rows = AuditEntry.objects.filter(subject=found["id"]).order_by("id")
    assert [row.action for row in rows] == ["containment.create", "containment.lift"]
    assert rows[0].after["reason"] == "why"


def test_the_command_contains_without_the_web_server(api, as_other, project, capsys):
    api.call("a", agent="support")
    as_other.call("a", agent="support")
    call_command("contain", "stop", "agent", "support", project=project.slug, reason="night")
    assert "1 sessions can be stopped" in capsys.readouterr().out
    assert decision(api.call("a", agent="support")) == "stop"
    assert decision(as_other.call("a", agent="support")) == "allow"
    call_command("contain", "list")
    assert "the agent support" in capsys.readouterr().out
    call_command("contain", "lift", Containment.objects.get().public_id)
    assert decision(api.call("a", agent="support")) == "allow"
    with pytest.raises(CommandError, match="no containment"):
        call_command("contain", "lift", "ctn_unknown")


def test_staff_contain_every_project_of_the_server(api, as_other):
    call_command("contain", "block", "server")
    assert decision(api.call("a")) == "block"
    assert decision(as_other.call("a")) == "block"
    (found,) = api.get("/containments").json()["items"]
    assert found["scope"] == "server"
    assert api.delete(f"/containments/{found['id']}").status_code == 404
    call_command("contain", "lift", found["id"])
    assert decision(api.call("a")) == "allow"
