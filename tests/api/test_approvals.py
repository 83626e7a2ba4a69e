"""Approvals through the API: lists, reading without waiting, the choices and their errors."""

from __future__ import annotations

import pytest
from django.utils import timezone

from detection.models import Approval, JudgeCall, Session


@pytest.fixture
def held(api):
    api.put("/overrides/openai", {"values": {"mode": "ask"}})
    told = api.loop(backend="openai")
    return told["verdicts"][0]["approval"]


def test_a_held_verdict_has_a_wait_url(api, held):
    assert held["id"].startswith("apr_")
    assert held["wait_url"].endswith(f"/api/v1/approvals/{held['id']}?wait=30")
    assert "T" in held["deadline"]


def test_web_responds_at_once_even_with_wait(api, held):
    told = api.get(f"/approvals/{held['id']}", wait=30)
    assert told.status_code == 200
    assert (told.json()["state"], told.json()["decision"]) == ("open", None)


def test_the_list_is_filtered_and_paged(api, held):
    assert [row["id"] for row in api.get("/approvals", state="open").json()["items"]] == [held["id"]]
    assert api.get("/approvals", state="decided").json() == {"items": [], "next_cursor": None}
    api.loop("s-2", backend="openai")
    first = api.get("/approvals", limit=1).json()
    second = api.get("/approvals", limit=1, cursor=first["next_cursor"]).json()
    assert [first["items"][0]["session"], second["items"][0]["session"]] == ["s-2", "s-1"]
    assert second["next_cursor"] is None


def test_an_answer_decides_and_a_second_one_is_a_conflict(api, with_scopes, held):
    told = api.post(f"/approvals/{held['id']}/decision", {"choice": "raise", "raise_by": 3})
    assert told.status_code == 200
    assert (told.json()["decision"], told.json()["raise_by"]) == ("allow", 3)
    late = with_scopes("admin").post(f"/approvals/{held['id']}/decision", {"choice": "skip"})
    assert (late.status_code, late.json()["code"]) == (409, "already_decided")


def test_a_stop_answers_the_held_call_and_stops_the_session(api, held):
    stopped = api.post(f"/approvals/{held['id']}/decision", {"choice": "stop"}).json()
    assert (stopped["state"], stopped["decision"], stopped["choice"]) == ("decided", "stop", "stop")
    assert f"This session was stopped by {stopped['decided_by']} in LoopGuard." in stopped["message"]
    session = api.get("/sessions/s-1").json()
    assert (session["state"], session["stopped"]["kind"]) == ("stopped", "person")
    assert session["stopped"]["by"] == stopped["decided_by"]
    assert api.call(backend="openai").json()["verdicts"][0]["decision"] == "stop"
    again = api.post(f"/approvals/{held['id']}/decision", {"choice": "stop"})
    assert (again.status_code, again.json()) == (200, stopped)
    (entry,) = api.get("/incidents").json()["items"]
    assert (entry["needs_acknowledgement"], entry["is_active"]) == (False, False)


@pytest.mark.parametrize(
    "body",
    [{}, {"choice": "maybe"}, {"choice": "raise"}, {"choice": "raise", "raise_by": 10_001}, {"choice": "raise", "raise_by": "3x"},
     {"choice": "skip", "more": 1}, {"choice": "stop", "remember": True}, [], "skip", {"choice": None}],
)  # fmt: skip
def test_an_invalid_decision_is_rejected_and_the_approval_stays_open(body, api, held):
    refused = api.post(f"/approvals/{held['id']}/decision", body)
    assert refused.status_code == 422
    assert refused.json()["code"]
    assert Approval.objects.get().is_open


def test_answering_needs_the_scope_admin_and_listing_read(with_scopes, api, held):
    agent = with_scopes("guard", "ingest")
    assert agent.post(f"/approvals/{held['id']}/decision", {"choice": "skip"}).status_code == 403
    assert agent.get("/approvals").status_code == 403
    assert agent.get(f"/approvals/{held['id']}").status_code == 200


def test_approvals_of_another_project_do_not_exist(as_other, held):
    assert as_other.get(f"/approvals/{held['id']}").status_code == 404
    assert as_other.post(f"/approvals/{held['id']}/decision", {"choice": "skip"}).status_code == 404
    assert as_other.get("/approvals").json()["items"] == []


def test_remembered_answers_are_listed_and_forgotten(api, as_other, held):
    api.post(f"/approvals/{held['id']}/decision", {"choice": "skip", "remember": True})
    (row,) = api.get("/approvals/remembered").json()["items"]
    assert (row["tool"], row["choice"], row["times_used"]) == ("search_web", "skip", 0)
    assert as_other.delete(f"/approvals/remembered/{row['id']}").status_code == 404
    assert api.delete(f"/approvals/remembered/{row['id']}").status_code == 204
    assert api.delete("/approvals/remembered/99999999999999999999").status_code == 404
    assert api.get("/approvals/remembered").json()["items"] == []


def test_the_answer_comes_in_a_wire_shape(api, held):
    api.post(f"/approvals/{held['id']}/decision", {"choice": "skip"})
    told = api.get(f"/approvals/{held['id']}", render="mcp").json()
    assert told["rendered"] == {"content": [{"type": "text", "text": told["message"]}], "isError": True}
    assert api.get(f"/approvals/{held['id']}", render="html").status_code == 422
    assert api.get(f"/approvals/{held['id']}", waite=1).json()["code"] == "unknown_parameter"


@pytest.fixture
def judged(api, project):
    """The id of an approval that the judge denied."""
    approval = Approval.objects.create(
        project=project, session=Session.objects.create(project=project, external_id="judged"), decider="judge",
        seq=1, call_id="c", tool="t", loop_id="a", kind="budget", count=6, limit=6, state="decided", decision="stop",
        requested_at=timezone.now(), deadline=timezone.now(), unattended="stop", decided_by="judge",
        decided_at=timezone.now(),
    )  # fmt: skip
    JudgeCall.objects.create(
        project=project, approval=approval, loop_id="a", session_id=approval.session_id, outcome="denied", reason="No.",
    )  # fmt: skip
    return approval.public_id


def test_a_ruling_is_read_and_labelled(api, judged):
    assert (
        api.get(f"/approvals/{judged}/ruling").json().items()
        >= {"outcome": "denied", "reason": "No.", "label": None}.items()
    )
    answer = api.post(f"/approvals/{judged}/ruling/label", {"label": "wrong"})
    assert answer.status_code == 200
    assert answer.json()["label"] == "wrong"
    assert answer.json()["labelled_by"].startswith("key:")
    assert api.get(f"/approvals/{judged}/ruling").json() == answer.json()
    assert api.post(f"/approvals/{judged}/ruling/label", {"label": "maybe"}).status_code == 422
    assert api.get("/approvals/apr_none/ruling").status_code == 404
