"""Calls of one request that are held for the same loop or limit: one approval decides all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detection.engine.scopes import PROJECT
from detection.models import AllowedCall, Approval, Event, Incident, RememberedDecision, Session
from detection.services.approvals import decisions
from detection.services.policies import overrides
from detection.services.sessions import actions
from detection.services.sessions.locked_session import locked_session
from tests.support.agents import OPERATOR, Agent

from .test_decisions import make_overdue

HOLDING: dict[str, tuple[dict[str, Any], int]] = {
    "limit of a run": ({"budget_max_calls": 3, "budget_ladder": "ask"}, 2),
    "limit of a session": ({"session_budget_max_calls": 3, "session_budget_ladder": "ask"}, 2),
    "loop": ({"preset": "proxy", "mode": "ask"}, 3),
    "loop, all counters reset": ({"preset": "interactive"}, 3),
    "loop, copies counted once": ({"mode": "ask"}, 3),
}
LOOPS = [name for name in HOLDING if name.startswith("loop")]
DECISIONS = {"skip": "block", "allow_once": "allow", "raise": "allow", "exempt": "allow", "disable": "allow"}


@pytest.fixture
def holding(request, project):
    """A project in which the calls of a further request are held; how many calls it takes until then."""
    values, before = HOLDING[request.param]
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    project.refresh_from_db()
    return before


def request_of(agent, copies):
    return agent.asks(*(agent.call(call_id=f"copy-{number}") for number in range(copies)))


def hold(agent, before, copies=2):
    """Make calls up to the limit, then some at once; the verdicts on these."""
    for _ in range(before):
        assert agent.asks().decision == "allow"
    return request_of(agent, copies).verdicts


def blocked():
    """How many calls are counted as blocked: by the session, and by the incident."""
    return Session.objects.get().blocked_count, Incident.objects.latest("pk").calls_blocked


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("choice", DECISIONS)
@pytest.mark.parametrize("holding", HOLDING, indirect=True)
def test_one_decision_is_for_all_of_them(holding, choice, copies, project, agent):
    held = hold(agent, holding, copies)
    approval = Approval.objects.get()
    assert [(one.decision, one.approval["id"]) for one in held] == [("hold", approval.public_id)] * copies
    assert {one.verdict.incident for one in held} == {Incident.objects.get().public_id}
    assert (approval.held_calls, *blocked()) == (copies, copies, copies)
    decisions.decide(project.pk, approval.public_id, choice, OPERATOR, raise_by=5)
    decision = DECISIONS[choice]
    assert [one.decision for one in request_of(agent, copies).verdicts] == [decision] * copies
    assert blocked() == ((0, 0) if decision == "allow" else (copies, copies))
    assert AllowedCall.objects.count() == (copies if decision == "allow" else 0)
    assert Event.objects.filter(type="call").count() == holding + copies


@pytest.mark.parametrize("holding", HOLDING, indirect=True)
def test_a_request_that_is_sent_again_waits_for_the_same_approval(holding, agent):
    first = hold(agent, holding)
    again = request_of(agent, 2).verdicts
    assert [one.approval for one in again] == [one.approval for one in first]
    assert all(one.duplicate for one in again)
    assert Approval.objects.get().held_calls == 2


@pytest.mark.parametrize("holding", HOLDING, indirect=True)
def test_nobody_decides_in_time(holding, project, agent):
    held = hold(agent, holding)
    make_overdue(held[0].approval["id"])
    assert decisions.close_overdue() == 1
    assert [one.decision for one in request_of(agent, 2).verdicts] == ["block", "block"]
    assert blocked() == (2, 2)


@pytest.mark.parametrize("holding", HOLDING, indirect=True)
def test_the_session_is_stopped_meanwhile(holding, project, agent):
    hold(agent, holding)
    actions.stop(project.pk, "s-1", OPERATOR)
    assert [one.decision for one in request_of(agent, 2).verdicts] == ["stop", "stop"]


@pytest.mark.parametrize("choice", DECISIONS)
@pytest.mark.parametrize("holding", LOOPS, indirect=True)
def test_a_remembered_decision_is_for_all_of_them(holding, choice, project, agent, principal):
    first = hold(agent, holding)
    decisions.decide(project.pk, first[0].approval["id"], choice, OPERATOR, raise_by=5, remember=True)
    later = Agent(principal, "s-2", agent="triage")
    assert [one.decision for one in hold(later, holding)] == [DECISIONS[choice]] * 2
    session = Session.objects.get(external_id="s-2")
    assert session.blocked_count == (0 if DECISIONS[choice] == "allow" else 2)
    assert not Event.objects.filter(session=session, decision="hold").exists()
    assert [cell[2].strip("?") for cell in session.strip[-2:]] == [
        "" if session.blocked_count == 0 else "b"
    ] * 2
    assert RememberedDecision.objects.get().times_used == 1


@pytest.mark.parametrize("holding", ["limit of a run", "limit of a session"], indirect=True)
def test_different_calls_wait_together_and_a_later_request_joins_them(holding, project, agent):
    for number in range(holding):
        agent.asks(agent.call(arguments=json.dumps({"page": number})))
    held = agent.asks(agent.call(tool="read"), agent.call(tool="write"), agent.call(tool="send")).verdicts
    joined = agent.asks(
        agent.call(tool="read", arguments="{}"), agent.call(tool="write", arguments="{}")
    ).verdicts
    approval = Approval.objects.get()
    assert {one.approval["id"] for one in (*held, *joined)} == {approval.public_id}
    assert (approval.held_calls, approval.count) == (5, holding + 4)
    decisions.decide(project.pk, approval.public_id, "allow_once", OPERATOR)
    assert blocked() == (0, 0)


def test_a_call_of_another_tool_with_a_remembered_decision_waits_for_the_open_approval(project, agent):
    values = {"cycle_ladder": "ask", "cycle_min_laps": 2, "cycle_unknown_laps": 2}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    RememberedDecision.objects.create(
        project=project, agent="triage", tool="edit", kind="cycle", choice="allow_once", created_by="ana",
        expires_at="2999-01-01T00:00:00Z",
    )  # fmt: skip
    for tool in ("edit", "check", "edit"):
        assert agent.asks(agent.call(tool=tool)).decision == "allow"
    held = agent.asks(agent.call(tool="check"), agent.call(tool="edit")).verdicts
    assert [one.decision for one in held] == ["hold", "hold"]
    assert {one.approval["id"] for one in held} == {Approval.objects.get(state="open").public_id}
    assert RememberedDecision.objects.get().times_used == 0


@pytest.mark.parametrize("holding", ["loop", "loop, copies counted once"], indirect=True)
def test_results_of_all_allowed_calls_count(holding, project, agent):
    held = hold(agent, holding, 3)
    decisions.decide(project.pk, held[0].approval["id"], "disable", OPERATOR)
    with locked_session(Session.objects.get().key) as locked:
        (run,) = locked.tracker.runs.values()
        assert {record.decision for record in run.records} == {"allow"}


def test_without_a_decider_a_copy_is_stopped_as_well(project, agent):
    values = {"budget_max_rounds": 3, "budget_soft_rounds": False, "budget_ladder": "justify"}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    for number in range(2):
        agent.asks(agent.call(arguments=json.dumps({"page": number})))
    given = agent.asks(agent.call(), agent.call()).verdicts
    assert [one.decision for one in given] == ["stop", "stop"]
    assert given[0].message() == given[1].message()
    assert not Approval.objects.exists()
    assert not Event.objects.filter(decision="hold").exists()
