"""What a held call waits on, who decides it, and what that does to the session."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import (
    Approval,
    AuditEntry,
    Choice,
    Event,
    Incident,
    RememberedDecision,
    Session,
    SessionState,
)
from detection.services.approvals import decisions
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.events.event_records import EventRecord
from detection.services.policies import overrides
from detection.services.sessions import actions, evaluation
from detection.services.sessions.locked_session import locked_session
from tests.support.agents import OPERATOR, Agent
from tests.support.threads import all_results, in_thread

BEN = Actor("ben")


@pytest.fixture
def asking(project):
    """A project in which every 4th identical call is asked about."""
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", "attended": True}, OPERATOR)
    project.refresh_from_db()
    return project


class TwiceAtLast(Agent):
    """An agent that makes a call twice with one request when it is held."""

    copies = 2


@pytest.fixture(params=[Agent, TwiceAtLast], ids=["one call", "two calls of one request"])
def agent(request, principal):
    return request.param(principal, backend="openai", model="gpt-5", agent="triage")


def copies_of(agent):
    return getattr(agent, "copies", 1)


def hold(agent, times=4, **call):
    """Repeat a call until it is held, with all its copies; the last verdict."""
    verdicts = [agent.asks(agent.call(**call)).verdicts[0] for _ in range(times - 1)]
    last = agent.asks(*(agent.call(**call) for _ in range(copies_of(agent)))).verdicts
    assert len({(one.decision, (one.approval or {}).get("id")) for one in last}) == 1
    return [*verdicts, last[-1]][-1]


def session_of(project, name="s-1"):
    return Session.objects.get(project=project, external_id=name)


def make_overdue(public_id):
    Approval.objects.filter(public_id=public_id).update(deadline=timezone.now() - timedelta(seconds=1))


def test_a_held_call_has_an_approval_with_a_deadline_and_the_session_waits(asking, agent):
    verdict = hold(agent)
    assert verdict.decision == "hold"
    approval = Approval.objects.get(public_id=verdict.approval["id"])
    own = "&call_id=call_4" if copies_of(agent) > 1 else ""
    assert verdict.approval["wait_url"].endswith(f"/api/v1/approvals/{approval.public_id}?wait=30{own}")
    assert verdict.approval["deadline"] == approval.deadline.isoformat()
    assert 110 < (approval.deadline - approval.requested_at).total_seconds() <= 120
    assert (approval.unattended, approval.kind, approval.count, approval.limit) == ("block", "repeat", 4, 4)
    assert approval.incident == Incident.objects.get()
    assert session_of(asking).state == SessionState.HELD


def test_the_same_loop_is_not_asked_about_twice_while_somebody_is_asked(asking, agent):
    first, again = hold(agent), agent.asks(agent.call()).verdicts[0]
    assert again.approval["id"] == first.approval["id"]
    assert Approval.objects.get().held_calls == copies_of(agent) + 1


def test_two_copies_in_one_request_share_the_approval(asking, agent):
    hold(agent, times=3)
    out = agent.asks(agent.call(round="r-9"), agent.call(round="r-9"))
    assert [verdict.decision for verdict in out.verdicts] == ["hold", "hold"]
    assert len({verdict.approval["id"] for verdict in out.verdicts}) == 1


@pytest.mark.parametrize(
    ("choice", "by", "decision"),
    [
        ("skip", 0, "block"),
        ("allow_once", 0, "allow"),
        ("raise", 3, "allow"),
        ("exempt", 0, "allow"),
        ("disable", 0, "allow"),
    ],
)
def test_each_answer_decides_for_the_call_and_frees_the_session(choice, by, decision, asking, agent):
    verdict = hold(agent)
    approval = decisions.decide(asking.pk, verdict.approval["id"], choice, OPERATOR, raise_by=by)
    assert (approval.state, approval.decision, approval.decided_by) == ("decided", decision, "ana")
    session = session_of(asking)
    assert session.state == (SessionState.RUNNING if decision == "allow" else SessionState.LOOPING)
    assert session.meter_count == (0 if decision == "allow" else 4)
    assert session.blocked_count == (0 if decision == "allow" else copies_of(agent))
    assert Incident.objects.get().calls_blocked == session.blocked_count
    assert Incident.objects.get().activity.filter(action="approval_decided", actor="ana").exists()
    assert AuditEntry.objects.filter(action="approval.decide", actor="ana").exists()


def test_skip_keeps_detection_and_asks_again_at_the_next_equal_call(asking, agent):
    decisions.decide(asking.pk, hold(agent).approval["id"], "skip", OPERATOR)
    again = agent.asks(agent.call()).verdicts[0]
    assert again.decision == "hold"
    assert Approval.objects.count() == 2
    assert agent.asks(agent.call(tool="other")).decision == "allow"


def test_allow_once_starts_the_counting_anew(asking, agent):
    decisions.decide(asking.pk, hold(agent).approval["id"], "allow_once", OPERATOR)
    for _ in range(3):
        assert agent.asks(agent.call()).decision == "allow"
        assert session_of(asking).state == SessionState.RUNNING
    assert agent.asks(agent.call()).decision == "hold"
    decisions.decide(asking.pk, Approval.objects.get(state="open").public_id, "skip", OPERATOR)
    assert session_of(asking).state == SessionState.LOOPING
    assert Incident.objects.get().detections == 2


def test_raise_lets_the_loop_go_that_much_further(asking, agent):
    decisions.decide(asking.pk, hold(agent).approval["id"], "raise", OPERATOR, raise_by=2)
    given = [agent.asks(agent.call()).decision for _ in range(6)]
    assert given == ["allow"] * 5 + ["hold"]


def test_disable_holds_for_that_session_only_is_shown_and_can_be_taken_back(asking, agent, principal):
    decisions.decide(asking.pk, hold(agent).approval["id"], "disable", OPERATOR)
    assert session_of(asking).policy_values == {"enabled": False}
    assert [agent.asks(agent.call()).decision for _ in range(6)] == ["allow"] * 6
    assert hold(Agent(principal, "s-2")).decision == "hold"
    actions.set_policy(asking.pk, "s-1", {"enabled": None}, OPERATOR)
    assert hold(agent).decision == "hold"


def test_exempt_frees_the_tool_in_this_session_and_no_other_tool(asking, agent):
    decisions.decide(asking.pk, hold(agent).approval["id"], "exempt", OPERATOR)
    assert [agent.asks(agent.call()).decision for _ in range(6)] == ["allow"] * 6
    assert hold(agent, tool="other").decision == "hold"


@pytest.fixture
def interactive(project):
    """A project in which the answer to a held call resets all counters."""
    overrides.save_override(project.pk, PROJECT, {"preset": "interactive"}, OPERATOR)
    return project


@pytest.mark.parametrize("choice", ["skip", "allow_once"])
def test_resending_does_not_bypass_a_hold_whose_answer_resets_the_counters(choice, interactive, agent):
    first, *resent = [agent.asks().verdicts[0] for _ in range(8)][3:]
    assert {verdict.decision for verdict in (first, *resent)} == {"hold"}
    assert {verdict.approval["id"] for verdict in resent} == {first.approval["id"]}
    assert Approval.objects.get().held_calls == 5
    decisions.decide(interactive.pk, first.approval["id"], choice, OPERATOR)
    again = [agent.asks().verdicts[0] for _ in range(5)]
    assert [verdict.decision for verdict in again] == ["allow"] * 3 + ["hold"] * 2
    assert again[-1].approval["id"] != first.approval["id"]


def test_an_approval_that_expires_resets_the_counters_too(interactive, agent):
    make_overdue(hold(agent, times=5).approval["id"])
    assert [agent.asks().decision for _ in range(4)] == ["allow"] * 3 + ["hold"]


def test_observed_calls_reset_the_counters_at_once(interactive, agent):
    agent.posts(*[agent.call() for _ in range(8)])
    evaluation.evaluate(session_of(interactive).key)
    given = Event.objects.filter(type="call").order_by("seq").values_list("decision", flat=True)
    assert list(given) == (["allow"] * 3 + ["hold"]) * 2


def test_raise_lets_a_loop_whose_answer_resets_the_counters_go_that_much_further(interactive, agent):
    decisions.decide(interactive.pk, hold(agent).approval["id"], "raise", OPERATOR, raise_by=2)
    assert [agent.asks().decision for _ in range(6)] == ["allow"] * 5 + ["hold"]


@pytest.mark.parametrize(
    ("reaction", "decision"), [("block", "block"), ("stop", "stop"), ("allow", "allow"), ("disable", "allow")]
)
def test_unanswered_the_default_holds_from_the_deadline_on_whoever_reads_first(
    reaction, decision, asking, agent
):
    values = {"mode": "ask", "unattended_reaction": reaction}
    overrides.save_override(asking.pk, PROJECT, values, OPERATOR)
    held = hold(agent)
    make_overdue(held.approval["id"])
    approval = decisions.find(asking.pk, held.approval["id"])
    assert (approval.state, approval.decision, approval.reason) == ("expired", decision, "expired")
    assert session_of(asking).policy_values == ({"enabled": False} if reaction == "disable" else {})
    states = {"allow": SessionState.RUNNING, "block": SessionState.LOOPING, "stop": SessionState.STOPPED}
    assert session_of(asking).state == states[decision]


def test_the_sweeper_closes_what_nobody_reads(asking, agent):
    make_overdue(hold(agent).approval["id"])
    assert decisions.close_overdue() == 1
    assert decisions.close_overdue() == 0
    assert Approval.objects.get().state == "expired"


def test_an_approval_that_cannot_be_closed_keeps_no_other_open(asking, agent, monkeypatch):
    other = Agent(agent.principal, "s-other")
    first, second = (hold(one).approval["id"] for one in (agent, other))
    make_overdue(first)
    make_overdue(second)
    broken, close = Approval.objects.get(public_id=first).session_id, decisions._close_overdue_in

    def closed(key):
        if key.session_id == broken:
            raise ZeroDivisionError
        close(key)

    Approval.objects.filter(public_id=first).update(deadline=timezone.now() - timedelta(hours=1))
    monkeypatch.setattr(decisions, "_close_overdue_in", closed)
    assert decisions.close_overdue() == 2
    assert Approval.objects.get(public_id=second).state == "expired"


def test_the_next_call_of_the_session_closes_an_overdue_approval_too(asking, agent):
    make_overdue(hold(agent).approval["id"])
    agent.asks(agent.call(tool="other"))
    assert Approval.objects.get().state == "expired"


def test_a_held_call_that_is_sent_again_gets_the_answer(asking, agent):
    for number in range(3):
        agent.asks(agent.call(call_id=f"c-{number}"))
    held = agent.asks(agent.call(call_id="c-3")).verdicts[0]
    assert agent.asks(agent.call(call_id="c-3")).verdicts[0].approval == held.approval
    decisions.decide(asking.pk, held.approval["id"], "allow_once", OPERATOR)
    again = agent.asks(agent.call(call_id="c-3")).verdicts[0]
    assert (again.decision, again.duplicate) == ("allow", True)


def test_a_run_that_ends_after_its_held_call_was_allowed_was_not_stopped(asking, agent):
    for number in range(3):
        agent.asks(agent.call(call_id=f"c-{number}"))
    held = agent.asks(agent.call(call_id="c-3")).verdicts[0]
    decisions.decide(asking.pk, held.approval["id"], "allow_once", OPERATOR)
    agent.asks(agent.call(call_id="c-3"))
    agent.posts(EventRecord(type="end", session="s-1", content="completed"))
    incident = Incident.objects.get(public_id=held.verdict.incident)
    assert not incident.evidence.get("reactions")
    assert not incident.activity.filter(action="agent_ended").exists()


def test_an_answer_after_the_deadline_is_refused_and_changes_nothing(asking, agent):
    held = hold(agent)
    make_overdue(held.approval["id"])
    with pytest.raises(Conflict) as refused:
        decisions.decide(asking.pk, held.approval["id"], "disable", OPERATOR)
    assert refused.value.code == "approval_expired"
    assert session_of(asking).policy_values == {}


def test_the_second_operator_is_told_who_answered_and_how(asking, agent):
    held = hold(agent)
    decisions.decide(asking.pk, held.approval["id"], "skip", OPERATOR)
    with pytest.raises(Conflict) as refused:
        decisions.decide(asking.pk, held.approval["id"], "allow_once", BEN)
    assert refused.value.code == "already_decided"
    assert refused.value.detail == "ana has already decided: skip this call."


def test_a_double_click_is_one_answer(asking, agent):
    held = hold(agent)
    for _ in range(2):
        approval = decisions.decide(asking.pk, held.approval["id"], "raise", OPERATOR, raise_by=2)
    assert approval.decision == "allow"
    assert AuditEntry.objects.filter(action="approval.decide").count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_of_two_answers_at_once_exactly_one_wins(asking, agent):
    held = hold(agent)
    together, outcomes = threading.Barrier(2), []

    def click(actor, choice):
        try:
            together.wait(30)
            decisions.decide(asking.pk, held.approval["id"], choice, actor)
            outcomes.append("won")
        except Conflict as refused:
            outcomes.append(refused.code)

    all_results([in_thread(click, *pair) for pair in ((OPERATOR, "skip"), (BEN, "disable"))])
    assert sorted(outcomes) == ["already_decided", "won"]
    approval = Approval.objects.get()
    assert session_of(asking).policy_values == ({"enabled": False} if approval.choice == "disable" else {})


def test_a_session_that_ends_meanwhile_withdraws_the_approval(asking, agent):
    held = hold(agent)
    agent.posts(agent.result("x"), type(agent.result("y"))(type="end", session="s-1", content="completed"))
    evaluation.evaluate(session_of(asking).key)
    approval = Approval.objects.get()
    assert (approval.state, approval.decision, approval.reason) == ("withdrawn", "block", "session_ended")
    assert session_of(asking).state == SessionState.ENDED
    with pytest.raises(Conflict) as refused:
        decisions.decide(asking.pk, held.approval["id"], "skip", OPERATOR)
    assert refused.value.code == "approval_withdrawn"


def test_stopping_the_session_meanwhile_stops_the_call_that_waits(asking, agent):
    held = hold(agent)
    actions.stop(asking.pk, "s-1", OPERATOR, "enough")
    approval = decisions.find(asking.pk, held.approval["id"])
    assert (approval.state, approval.decision, approval.reason) == ("withdrawn", "stop", "session_stopped")
    assert "enough" in approval.message
    assert session_of(asking).state == SessionState.STOPPING
    actions.resume(asking.pk, "s-1", OPERATOR)
    assert session_of(asking).state == SessionState.LOOPING  # nothing has ended its loop
    assert agent.asks(agent.call()).decision == "allow"


def test_a_remembered_answer_decides_in_later_sessions_of_the_same_agent_and_tool(asking, agent, principal):
    held = hold(agent)
    decisions.decide(asking.pk, held.approval["id"], "allow_once", OPERATOR, remember=True)
    later = hold(Agent(principal, "s-2", agent="triage"))
    assert (later.decision, later.approval["id"]) == (
        "allow",
        Approval.objects.get(session__external_id="s-2").public_id,
    )
    second = session_of(asking, "s-2")
    assert (second.state, second.blocked_count) == (SessionState.RUNNING, 0)
    assert Event.objects.filter(session_id=second.pk, decision="hold").count() == 0
    assert Approval.objects.get(session=second).reason == "remembered"
    assert RememberedDecision.objects.get().times_used == 1
    assert hold(Agent(principal, "s-3", agent="other")).decision == "hold"
    assert hold(Agent(principal, "s-4", agent="triage"), tool="other").decision == "hold"


def test_a_remembered_skip_blocks_without_asking_and_can_be_forgotten(asking, agent, principal):
    decisions.decide(asking.pk, hold(agent).approval["id"], "skip", OPERATOR, remember=True)
    assert hold(Agent(principal, "s-2", agent="triage")).decision == "block"
    decisions.delete_remembered(asking.pk, RememberedDecision.objects.get().pk, OPERATOR)
    assert hold(Agent(principal, "s-3", agent="triage")).decision == "hold"


def test_what_is_remembered_ends(asking, agent, principal):
    decisions.decide(asking.pk, hold(agent).approval["id"], "disable", OPERATOR, remember=True)
    RememberedDecision.objects.update(expires_at=timezone.now())
    assert hold(Agent(principal, "s-2", agent="triage")).decision == "hold"


@pytest.mark.parametrize(("choice", "by"), [("raise", 0), ("raise", 10_001), ("maybe", 0), ("", 0)])
def test_an_answer_that_is_none_is_refused(choice, by, asking, agent):
    with pytest.raises(Invalid):
        decisions.decide(asking.pk, hold(agent).approval["id"], choice, OPERATOR, raise_by=by)
    assert Approval.objects.get().is_open


def test_approvals_of_other_projects_do_not_exist(asking, agent):
    held = hold(agent)
    with pytest.raises(NotFound):
        decisions.find(asking.pk + 1, held.approval["id"])
    with pytest.raises(NotFound):
        decisions.decide(asking.pk + 1, held.approval["id"], "skip", OPERATOR)


def test_calls_that_were_only_observed_are_not_asked_about(asking, agent):
    agent.posts(*(agent.call() for _ in range(6)))
    evaluation.evaluate(session_of(asking).key)
    assert not Approval.objects.exists()
    assert Incident.objects.get().decision == "hold"


def test_a_budget_of_calls_is_raised_by_the_sessions_own_limit(project, agent):
    values = {"budget_max_calls": 5, "budget_ladder": "ask"}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    calls = [agent.asks(agent.call(arguments=f'{{"page": {n}}}', tool=f"t{n}")).verdicts[0] for n in range(5)]
    assert calls[-1].decision == "hold"
    decisions.decide(project.pk, calls[-1].approval["id"], "raise", OPERATOR, raise_by=10)
    assert session_of(project).policy_values == {"budget_max_calls": 15}
    assert agent.asks(agent.call(tool="t9")).decision == "allow"


@pytest.fixture
def costly(project):
    values = {"session_budget_max_cost_usd": 1, "session_budget_ladder": "ask"}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    return project


def spend(agent, number, run=""):
    """A call that differs from all others, after a message that nobody attends."""
    agent.posts(EventRecord(type="message", session="s-1", content="continue"))
    call = agent.call(arguments=f'{{"page": {number}}}', tool=f"t{number}", cost_usd=0.4, run=run)
    return agent.asks(call).verdicts[0]


def test_nothing_resets_the_limit_of_a_session(costly, agent):
    assert [spend(agent, number).decision for number in range(4)] == ["allow", "allow", "hold", "hold"]
    agent.posts(*(EventRecord(type=kind, session="s-1") for kind in ("compaction", "end")))
    assert spend(agent, 5, run="another").decision == "hold"
    actions.stop(costly.pk, "s-1", OPERATOR)
    actions.resume(costly.pk, "s-1", OPERATOR)
    assert spend(agent, 6).decision == "hold"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE detection_trackerstate SET snapshot = '{\"v\": 0}'")
    assert spend(agent, 7).decision == "hold"


def test_a_raise_moves_the_limit_of_a_session_and_never_removes_it(costly, agent):
    held = [spend(agent, number) for number in range(3)][-1]
    decisions.decide(costly.pk, held.approval["id"], "raise", OPERATOR, raise_by=2)
    assert session_of(costly).policy_values == {"session_budget_max_cost_usd": 3.0}
    assert [spend(agent, number).decision for number in range(3, 8)] == [*["allow"] * 4, "hold"]
    actions.run_command(costly.pk, "s-1", "!/set(tool-loop-session-budget-max-cost-usd=+1)", OPERATOR)
    assert session_of(costly).policy_values == {"session_budget_max_cost_usd": 4.0}
    assert [spend(agent, number).decision for number in range(8, 11)] == ["allow", "hold", "hold"]


def test_decisions_about_a_limit_are_not_remembered(costly, agent):
    held = [spend(agent, number) for number in range(3)][-1]
    with pytest.raises(Invalid) as rejected:
        decisions.decide(costly.pk, held.approval["id"], "raise", OPERATOR, raise_by=2, remember=True)
    assert rejected.value.code == "limit_not_remembered"
    assert not RememberedDecision.objects.exists()


def test_a_state_that_is_to_be_rebuilt_does_not_stand_in_the_way_of_an_answer(asking, agent):
    held = hold(agent)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE detection_trackerstate SET snapshot = '{\"v\": 0}'")
    approval = decisions.decide(asking.pk, held.approval["id"], "disable", OPERATOR)
    assert approval.decision == "allow"
    assert session_of(asking).policy_values == {"enabled": False}


def reactions_of(incident):
    return incident.evidence["reactions"]


def test_what_came_of_each_reaction_is_stored_on_the_incident(project, agent):
    overrides.save_override(
        project.pk,
        PROJECT,
        {"mode": "warn,chance", "rung_gap_calls": 1, "result_aware": False},
        OPERATOR,
    )
    for _ in range(5):
        agent.asks(agent.call())
    for number in range(6):
        agent.asks(agent.call(tool=f"other{number}"))
    incident = Incident.objects.get()
    assert reactions_of(incident) == {"warn": {"went_on": 1}, "chance": {"changed": 1}}
    told = [(row.action, row.note) for row in incident.activity.filter(action__startswith="agent_")]
    assert told == [("agent_went_on", "after warn"), ("agent_changed", "after chance")]


@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        ({"type": "message", "role": "user", "content": "What is going on?"}, {"asked": 1}),
        ({"type": "message", "role": "assistant", "content": "I try again."}, {}),
        ({"type": "end", "content": "completed"}, {"ended": 1}),
    ],
)
def test_what_an_agent_did_next_is_told_apart(agent, then, outcome):
    for _ in range(4):
        agent.asks(agent.call())
    agent.posts(EventRecord(session="s-1", **then))
    evaluation.evaluate(Session.objects.get().key)
    incident = Incident.objects.get()
    assert (incident.evidence.get("reactions") or {}).get(incident.rung, {}) == outcome


def test_a_person_who_stops_the_session_ends_what_a_reaction_was_for(project, agent):
    hold(agent)
    actions.stop(project.pk, "s-1", OPERATOR)
    agent.asks()
    assert reactions_of(Incident.objects.get()) == {"chance": {"ended": 1}}


def test_the_choices_match_the_answers_of_the_engine(asking, agent):
    assert set(Choice.values) == {"skip", "allow_once", "raise", "exempt", "disable", "stop"}
    held = hold(agent)
    decisions.decide(asking.pk, held.approval["id"], "exempt", OPERATOR)
    with locked_session(session_of(asking).key) as locked:
        assert locked.tracker.exempt == ["search_web"]
