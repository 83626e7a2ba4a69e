"""Approvals through the API: lists, reading without waiting, the choices and their errors."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Approval, JudgeCall, RememberedDecision, Session


@pytest.fixture(params=[1, 2], ids=["one call", "two calls of one request"])
def held(request, api):
    """The approval of a held call, or of two that came with one request."""
    api.put("/overrides/openai", {"values": {"mode": "ask", "once_per_round": False}})
    api.loop(times=3, backend="openai")
    calls = [
        {"call_id": f"held-{number}", "tool": "search_web", "arguments": {"q": "reset"}}
        for number in range(request.param)
    ]
    answer = api.post("/guard", {"session": "s-1", "calls": calls, "backend": "openai"})
    assert answer.status_code == 200, answer.text
    approvals = [one["approval"] for one in answer.json()["verdicts"]]
    assert {one["id"] for one in approvals} == {Approval.objects.get().public_id}
    return approvals[0]


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
    assert "This session was stopped by an operator in LoopGuard." in stopped["message"]
    assert stopped["decided_by"].startswith("key:")
    session = api.get("/sessions/s-1").json()
    assert (session["state"], session["stopped"]["kind"]) == ("stopping", "person")
    assert session["stopped"]["by"] == stopped["decided_by"]
    assert api.call(backend="openai").json()["verdicts"][0]["decision"] == "stop"
    assert api.get("/sessions/s-1").json()["state"] == "stopped"
    again = api.post(f"/approvals/{held['id']}/decision", {"choice": "stop"})
    assert (again.status_code, again.json()) == (200, stopped)
    (entry,) = api.get("/incidents").json()["items"]
    assert (entry["stays_open"], entry["is_active"]) == (False, False)


@pytest.mark.promise("SEC-34")
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


def test_every_remembered_answer_is_listed(api, project):
    ends = timezone.now() + timedelta(days=1)
    rows = [
        {"agent": f"a-{number}", "tool": "t", "kind": "repeat", "choice": "skip"} for number in range(201)
    ]
    RememberedDecision.objects.bulk_create(
        RememberedDecision(project=project, expires_at=ends, **row) for row in rows
    )
    listed = api.get("/approvals/remembered").json()["items"]
    assert {row["agent"] for row in listed} == {row["agent"] for row in rows}


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
        seq=1, call_id="c", tool="t", calls_digest="a", kind="budget", count=6, limit=6, state="decided", decision="stop",
        requested_at=timezone.now(), deadline=timezone.now(), unattended="stop", decided_by="judge",
        decided_at=timezone.now(),
    )  # fmt: skip
    JudgeCall.objects.create(
        project=project, approval=approval, calls_digest="a", session_id=approval.session_id, outcome="denied", reason="No.",
    )  # fmt: skip
    return approval.public_id


@pytest.mark.promise("J-08")
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


LIMITS = {
    "run": {"budget_max_calls": 3, "budget_ladder": "ask"},
    "session": {"session_budget_max_calls": 3, "session_budget_ladder": "ask"},
    "interactive": {"preset": "interactive", "max_repeats": 3},
}


@pytest.mark.parametrize("values", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize(
    ("choice", "decision"), [("allow_once", "allow"), ("skip", "block"), ("stop", "stop")]
)
def test_two_calls_a_request_are_held_together_and_decided_together(values, choice, decision, api):
    api.put("/overrides", {"values": values})
    is_loop = "preset" in values
    bodies = [
        {
            "session": "s-1",
            "calls": [
                {
                    "call_id": f"{turn}-{n}",
                    "tool": "search",
                    "arguments": {} if is_loop else {"page": [turn, n]},
                }
                for n in range(2)
            ],
        }
        for turn in range(2)
    ]
    assert api.post("/guard", bodies[0]).json()["decision"] == "allow"
    held = api.post("/guard", bodies[1])
    assert (held.status_code, held.json()["decision"]) == (200, "hold")
    verdicts = held.json()["verdicts"]
    assert [one["decision"] for one in verdicts] == ["hold", "hold"]
    (approval,) = api.get("/approvals").json()["items"]
    assert (approval["held_calls"], approval["call_id"]) == (2, "1-0")
    assert [one["approval"]["id"] for one in verdicts] == [approval["id"]] * 2
    assert [one["approval"]["wait_url"].partition("?")[2] for one in verdicts] == [
        "wait=30",
        "wait=30&call_id=1-1",
    ]
    again = api.post("/guard", bodies[1])
    assert (again.status_code, again.json()["decision"]) == (200, "hold")
    api.post(f"/approvals/{approval['id']}/decision", {"choice": choice})
    after = api.post("/guard", bodies[1]).json()
    assert [one["decision"] for one in after["verdicts"]] == [decision] * 2
    assert api.get("/sessions/s-1").json()["blocked"] == (0 if decision == "allow" else 2)


@pytest.mark.parametrize(
    ("shape", "id_of", "name_of"),
    [
        ("openai", lambda one: one["tool_call_id"], None),
        ("anthropic", lambda one: one["tool_use_id"], None),
        ("gemini", lambda one: one["functionResponse"]["id"], lambda one: one["functionResponse"]["name"]),
    ],
)
def test_the_decision_is_rendered_for_the_call_that_asks(shape, id_of, name_of, api):
    api.put("/overrides", {"values": LIMITS["run"]})
    calls = [{"call_id": f"c-{n}", "tool": f"tool_{n}"} for n in range(4)]
    api.post("/guard", {"session": "s-1", "calls": calls})
    (approval,) = api.get("/approvals").json()["items"]
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "skip"})
    for number, call_id in ((2, ""), (2, "c-2"), (3, "c-3"), (2, "c-0"), (2, "unknown"), (2, "\x00")):
        told = api.get(f"/approvals/{approval['id']}", render=shape, call_id=call_id).json()["rendered"]
        assert id_of(told) == f"c-{number}"
        assert name_of is None or name_of(told) == f"tool_{number}"


def test_the_calls_that_a_list_of_messages_ends_with_are_held_together(api):
    api.put("/overrides", {"values": LIMITS["run"]})
    prompt = {"role": "user", "content": "Read the files."}
    functions = [
        {"id": f"c-{n}", "type": "function", "function": {"name": "read", "arguments": f'{{"n": {n}}}'}}
        for n in range(5)
    ]
    body = {
        "session": "s-1",
        "shape": "openai",
        "messages": [prompt, {"role": "assistant", "content": None, "tool_calls": functions}],
    }
    for _ in range(2):
        answer = api.post("/guard", body)
        assert (answer.status_code, answer.json()["decision"]) == (200, "hold")
        decisions = [one["decision"] for one in answer.json()["verdicts"]]
        assert decisions == ["allow", "allow", "hold", "hold", "hold"]
    (approval,) = api.get("/approvals").json()["items"]
    assert approval["held_calls"] == 3


@pytest.mark.parametrize("choice", [{"choice": "allow_once"}, {"choice": "raise", "raise_by": 3}, {"choice": "exempt"},
                                    {"choice": "disable"}, {"choice": "skip"}, {"choice": "stop"}])  # fmt: skip
def test_no_agent_reads_the_id_of_a_key(api, held, choice):
    decided = api.post(f"/approvals/{held['id']}/decision", choice).json()
    assert decided["decided_by"].startswith("key:")
    assert decided["decided_by"].removeprefix("key:") not in decided["message"]
    assert "operator" in decided["message"]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("budget emergency", "Reason given: budget emergency. No"), ("Stop it!", "Reason given: Stop it! No"),
     ("It said “enough.”", "Reason given: It said “enough.” No"), ("", "LoopGuard. No"), ("  ", "LoopGuard. No")],
)  # fmt: skip
def test_a_stop_gives_its_reason_as_a_sentence_and_no_key(api, reason, shown):
    api.call()
    api.post("/sessions/s-1/stop", {"reason": reason})
    message = api.call().json()["verdicts"][0]["message"]
    assert message.startswith("This session was stopped by an operator in LoopGuard.")
    assert shown in message
    assert "key:" not in message
