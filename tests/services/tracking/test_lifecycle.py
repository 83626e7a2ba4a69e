"""The states of an incident: what people do, what follows by rule, and how both work together."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from detection.console.loops import incident_text
from detection.engine.scopes import PROJECT
from detection.models import AlertEvent, Approval, Incident, Session
from detection.services.approvals import decisions
from detection.services.errors import ServiceError
from detection.services.events.event_records import EventRecord
from detection.services.incidents import triage
from detection.services.policies import overrides
from detection.services.retention import retention
from detection.services.sessions import actions
from detection.services.sessions.evaluation import evaluate
from tests.support.agents import OPERATOR
from tests.support.alerts import make_incident

SOON: dict[str, Any] = {"until": timezone.now() + timedelta(hours=1)}
STARTS: dict[str, dict[str, Any]] = {
    "open": {"status": "open", "ended_at": None},
    "open after a stop": {"status": "open", "needs_acknowledgement": True},
    "acknowledged": {"status": "acknowledged", "ended_at": None},
    "snoozed": {"status": "snoozed", "ended_at": None, "snoozed_until": SOON["until"]},
    "snoozed after a stop": {
        "status": "snoozed",
        "needs_acknowledgement": True,
        "snoozed_until": SOON["until"],
    },
    "ended": {"status": "ended"},
    "not a loop": {"status": "ended", "ended_at": None, "label": "false_alarm"},
    "resolved": {"status": "resolved"},
}
ACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "acknowledge": ("acknowledge", {}),
    "resolve": ("resolve", {}),
    "reopen": ("reopen", {}),
    "snooze for a time": ("snooze", SOON),
    "snooze until worse": ("snooze", {"until_worse": True}),
    "not a loop": ("label", {"value": "false_alarm"}),
    "a loop": ("label", {"value": "true_loop"}),
}
# One line per start, one word per action in the order of ACTIONS; - is refused.
TRANSITIONS = {
    "open": "acknowledged resolved open snoozed snoozed ended open",
    "open after a stop": "acknowledged resolved open snoozed - ended open",
    "acknowledged": "acknowledged resolved open snoozed snoozed ended acknowledged",
    "snoozed": "acknowledged resolved open snoozed snoozed ended snoozed",
    "snoozed after a stop": "acknowledged resolved open snoozed - ended snoozed",
    "ended": "acknowledged resolved open - - ended ended",
    "not a loop": "acknowledged resolved open - - ended open",
    "resolved": "- resolved open - - resolved resolved",
}


def after(project, start, action):
    incident = make_incident(project, **STARTS[start])
    name, arguments = ACTIONS[action]
    try:
        triage.ACTIONS[name](project.pk, incident.public_id, OPERATOR, **arguments)
    except ServiceError:
        return incident, "-"
    incident.refresh_from_db()
    return incident, incident.status


@pytest.mark.parametrize("start", STARTS)
def test_every_action_leads_from_every_state_where_the_model_says(project, start):
    found = " ".join(after(project, start, action)[1] for action in ACTIONS)
    assert found == TRANSITIONS[start]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("action", ACTIONS)
def test_undo_leads_back_from_every_change(project, start, action):
    incident, status = after(project, start, action)
    if status == "-" or not incident.activity.exists():
        return
    triage.undo(project.pk, incident.public_id, OPERATOR)
    incident.refresh_from_db()
    wanted = make_incident(project, **STARTS[start])
    fields = (
        "status",
        "label",
        "needs_acknowledgement",
        "snoozed_until",
        "snoozed_until_worse",
        "resolved_at",
    )
    assert [getattr(incident, name) for name in fields] == [getattr(wanted, name) for name in fields]
    assert (incident.ended_at is None) == (wanted.ended_at is None)


# --- together with detection ---


def only():
    return Incident.objects.get()


def warn_only(project):
    overrides.save_override(project.pk, PROJECT, {"mode": "warn"}, OPERATOR, "only warn")


def warned(agent, project):
    """A guarded loop that is warned about, and active."""
    warn_only(project)
    for _ in range(4):
        agent.asks()
    return only()


def work(agent, calls=5):
    """Let the agent change course."""
    for number in range(calls):
        agent.asks(agent.call("read_file", f'{{"path": "{number}"}}'))


def end_session(agent):
    agent.posts(EventRecord(type="end", session="s-1", content="completed"))
    evaluate(Session.objects.get().key)


def test_a_loop_that_the_agent_leaves_by_itself_ends_and_tells_so(agent, project):
    warned(agent, project)
    work(agent)
    assert (only().status, only().recovered, only().needs_acknowledgement) == ("ended", True, False)
    assert [event.facts["status"] for event in AlertEvent.objects.filter(type="ended")] == ["ended"]


@pytest.mark.parametrize(
    ("contents", "recovered"),
    [
        (["0 hits"] * 4, False),
        (["0 hits"] * 3 + ["3 hits: reset your password under Settings"], True),
        (["0 hits"] * 3 + ["3 hits: reset your password under Settings", "0 hits"], False),
    ],
    ids=["the same result", "a new result", "a new result, then the same loop"],
)
def test_a_session_ends_outside_a_loop_whose_last_call_had_a_new_result(agent, project, contents, recovered):
    warn_only(project)
    for number, content in enumerate(contents):
        agent.asks(agent.call(call_id=f"c-{number}"))
        agent.posts(agent.result(f"c-{number}", content))
    end_session(agent)
    incident = only()
    assert (incident.last_call_number >= 4, incident.recovered) == (True, recovered)
    noted = [entry.note for entry in incident.activity.filter(action="ended")]
    assert noted == ["its last call had a new result" if recovered else "the session ended in the loop"]
    said = "".join(part.text for part in incident_text.sentence(incident))
    assert ("the results were the same until a new one came" in said) == recovered


def test_an_incident_says_which_of_its_calls_counted_as_a_fifth(agent):
    """Else its limit and the first blocked call contradict each other."""
    for number in range(7):
        agent.posts(agent.call(call_id=f"c-{number}"), agent.result(f"c-{number}"))
    evaluate(Session.objects.get().key)
    incident = only()
    assert incident_text.slow_calls(incident) == ""
    for call in incident.evidence["calls"][3:]:
        call["at"] = (datetime.fromisoformat(call["at"]) + timedelta(seconds=25)).isoformat()
    late = "came 20 s or more after the one before. A late call counts as one fifth of a call"
    so = "so the 4th call would have been the first one blocked"
    assert incident_text.slow_calls(incident) == f"1 of these calls {late}, {so}."


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_reported_call_that_would_have_been_stopped_may_have_a_new_result(agent, is_guarded):
    """Such as a look of a reporting agent that looks long; the result of a blocked call is the message about it."""
    for number in range(12):
        call = agent.call(call_id=f"c-{number}")
        agent.asks(call) if is_guarded else agent.posts(call)
        agent.posts(agent.result(f"c-{number}", "3 visitors" if number < 11 else "4 visitors"))
        evaluate(Session.objects.get().key)
    incident = only()
    assert (incident.decision, incident.was_guarded) == ("stop", is_guarded)
    said = "".join(part.text for part in incident_text.sentence(incident))
    assert ("the results were the same until a new one came" in said) == (not is_guarded)
    end_session(agent)
    noted = [entry.note for entry in only().activity.filter(action="ended")]
    assert ("its last call had a new result" in noted) == (not is_guarded)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parallel_calls_with_a_new_result_are_outside_their_loop_in_any_order(agent, project, order):
    values = {"mode": "warn", "once_per_round": False}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR, "only warn")
    for number in range(3):
        agent.asks(agent.call(call_id=f"c-{number}"))
        agent.posts(agent.result(f"c-{number}"))
    agent.asks(agent.call(call_id="p-0", round="r"), agent.call(call_id="p-1", round="r"))
    agent.posts(*(agent.result(f"p-{place}", "3 hits: reset your password") for place in order))
    end_session(agent)
    assert only().recovered is True


def test_a_loop_that_is_left_later_does_not_end_with_a_result(agent, project):
    warned(agent, project)
    agent.asks(agent.call(call_id="news"))
    agent.posts(agent.result("news", "3 hits"))
    work(agent, 6)
    assert [entry.note for entry in only().activity.filter(action="ended")] == ["the agent changed course"]


@pytest.mark.parametrize("content", ["0 hits", "3 hits: reset your password under Settings"])
def test_a_session_that_sends_nothing_any_more_ends_like_one_that_says_so(agent, project, content):
    warn_only(project)
    for number, found in enumerate(["0 hits"] * 3 + [content]):
        agent.asks(agent.call(call_id=f"c-{number}"))
        agent.posts(agent.result(f"c-{number}", found))
    evaluate(Session.objects.get().key)
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.end_abandoned()
    assert (only().recovered, only().ended_at is not None) == (content != "0 hits", True)


def test_a_loop_that_led_to_a_stop_stays_open_until_someone_acknowledges_it(agent, project):
    for _ in range(8):
        agent.asks()
    work(agent)
    assert (only().status, only().ended_at is not None) == ("open", True)
    triage.acknowledge(project.pk, only().public_id, OPERATOR)
    assert (only().status, only().needs_acknowledgement) == ("acknowledged", False)


def test_observed_calls_that_would_have_been_stopped_keep_nobody_busy(agent):
    agent.posts(*[agent.call() for _ in range(9)])
    evaluate(Session.objects.get().key)
    assert (only().decision, only().status) == ("stop", "open")
    end_session(agent)
    assert only().status == "ended"


def test_an_approval_that_nobody_answers_keeps_its_incident_open(agent, project):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", "attended": True}, OPERATOR)
    for _ in range(4):
        agent.asks()
    Approval.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    decisions.close_overdue()
    work(agent)
    assert (only().status, only().ended_at is not None) == ("open", True)


def test_an_expired_approval_that_stops_the_run_makes_its_incident_critical(agent, project):
    values = {"mode": "ask", "attended": True, "unattended_reaction": "stop"}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    for _ in range(4):
        agent.asks()
    assert only().decision == "hold"
    Approval.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    decisions.close_overdue()
    assert (only().decision, only().needs_acknowledgement) == ("stop", True)
    escalated = AlertEvent.objects.get(type="escalated")
    assert (escalated.facts["decision"], escalated.facts["severity"]) == ("stop", "critical")


def test_an_approval_that_expires_after_its_loop_ended_reopens_the_incident_visibly(agent, project):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", "attended": True}, OPERATOR)
    for _ in range(4):
        agent.asks()
    work(agent)
    assert only().status == "ended"
    before = Session.objects.get().changed_xid
    Approval.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    decisions.close_overdue()
    assert (only().status, only().needs_acknowledgement) == ("open", True)
    assert only().activity.filter(action="reopened", actor="system").exists()
    assert AlertEvent.objects.filter(type="reopened").exists()
    assert Session.objects.get().changed_xid >= before


def test_acknowledging_an_incident_keeps_what_its_overdue_approval_changed(agent, project):
    values = {"mode": "ask", "attended": True, "unattended_reaction": "stop"}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    for _ in range(4):
        agent.asks()
    Approval.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    triage.acknowledge(project.pk, only().public_id, OPERATOR)
    assert (only().decision, only().status, only().needs_acknowledgement) == ("stop", "acknowledged", False)


def test_the_loops_of_a_session_that_a_person_stops_are_over(agent, project):
    warned(agent, project)
    actions.stop(project.pk, "s-1", OPERATOR)
    assert only().status == "open"
    agent.asks()
    assert (only().status, only().recovered) == ("ended", False)
    actions.resume(project.pk, "s-1", OPERATOR)
    assert Session.objects.get().state == "running"


def test_an_answered_approval_leaves_nothing_to_do(agent, project):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", "attended": True}, OPERATOR)
    held = [agent.asks() for _ in range(4)][-1].verdicts[0]
    decisions.decide(project.pk, held.approval["id"], "skip", OPERATOR)
    work(agent)
    assert only().status == "ended"


def test_an_abandoned_loop_ends(agent):
    agent.posts(*[agent.call() for _ in range(5)])
    evaluate(Session.objects.get().key)
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.end_abandoned()
    assert only().status == "ended"


def test_a_loop_labelled_as_none_is_over_for_people_and_goes_on_in_the_same_incident(agent, project):
    warned(agent, project)
    assert Session.objects.get().state == "looping"
    triage.label(project.pk, only().public_id, OPERATOR, "false_alarm")
    assert (only().status, only().ended_at, Session.objects.get().state) == ("ended", None, "running")
    for _ in range(6):
        agent.asks()
    assert (only().status, only().count, Session.objects.get().state) == ("ended", 10, "running")
    triage.label(project.pk, only().public_id, OPERATOR, "")
    assert (only().status, Session.objects.get().state) == ("open", "looping")


def test_a_snoozed_loop_that_ends_has_nothing_to_wake_for(agent, project):
    triage.snooze(project.pk, warned(agent, project).public_id, OPERATOR, **SOON)
    work(agent)
    assert (only().status, only().snoozed_until) == ("ended", None)


def test_a_stopped_loop_that_was_snoozed_until_it_gets_worse_is_open_again_when_it_ends(agent, project):
    for _ in range(8):
        agent.asks()
    triage.snooze(project.pk, only().public_id, OPERATOR, until_worse=True)
    work(agent)
    assert only().ended_at is not None
    assert (only().status, only().snoozed_until_worse) == ("open", False)


def test_a_snooze_ends_on_time_although_nothing_happens(agent, project):
    for _ in range(8):
        agent.asks()
    triage.snooze(project.pk, only().public_id, OPERATOR, **SOON)
    work(agent)
    assert only().status == "snoozed"
    assert triage.wake_due() == 0
    Incident.objects.update(snoozed_until=timezone.now() - timedelta(seconds=1))
    assert (triage.wake_due(), triage.wake_due()) == (1, 0)
    assert (only().status, only().snoozed_until) == ("open", None)
    assert AlertEvent.objects.filter(type="woke").count() == 1


def test_a_reopened_incident_stays_open_when_its_loop_ends(agent, project):
    incident = warned(agent, project)
    triage.acknowledge(project.pk, incident.public_id, OPERATOR)
    triage.reopen(project.pk, incident.public_id, OPERATOR)
    work(agent)
    assert only().status == "open"


def test_undoing_an_acknowledgement_after_the_loop_ended_leaves_nothing_to_do(agent, project):
    incident = warned(agent, project)
    triage.acknowledge(project.pk, incident.public_id, OPERATOR)
    work(agent)
    assert only().status == "acknowledged"
    triage.undo(project.pk, incident.public_id, OPERATOR)
    assert only().status == "ended"


def test_a_resolved_loop_does_not_make_its_session_loop_unless_it_continues(agent, project):
    triage.resolve(project.pk, warned(agent, project).public_id, OPERATOR)
    assert Session.objects.get().state == "running"
    agent.asks()
    assert Session.objects.get().state == "looping"
    assert sorted(Incident.objects.values_list("status", flat=True)) == ["open", "resolved"]
