"""The states of an incident: what people do, what follows by rule, and how both work together."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from detection.console.loops import incident_text
from detection.engine.scopes import PROJECT
from detection.models import AlertEvent, Approval, Incident, Loop, Session
from detection.services.approvals import decisions
from detection.services.events.event_records import EventRecord
from detection.services.incidents import loop_triage
from detection.services.policies import overrides
from detection.services.retention import retention
from detection.services.sessions import actions
from detection.services.sessions.evaluation import evaluate
from tests.support.agents import OPERATOR
from tests.support.alerts import make_incident

STARTS: dict[str, dict[str, Any]] = {
    "open": {"status": "open", "ended_at": None},
    "open after a stop": {"status": "open", "stays_open": True},
    "ended": {"status": "ended"},
    "not a loop": {"status": "ended", "ended_at": None, "label": "false_alarm"},
    "done": {"status": "done"},
}
VERBS = ("done", "fine", "confirm", "reopen")
# One line per start, one word per verb in the order of VERBS.
TRANSITIONS = {
    "open": "done ended open open",
    "open after a stop": "done ended open open",
    "ended": "ended ended ended ended",
    "not a loop": "ended ended open open",
    "done": "done done done done",
}


def after(project, start, verb):
    incident = make_incident(project, **STARTS[start])
    # Its sweep would reach what the other cases of the same loop have left.
    incident.loop = Loop.objects.create(
        project=project, key=f"{start} {verb}", kind="repeat", tool="search_web"
    )
    incident.save()
    loop_triage.ACTIONS[verb](project.pk, incident.loop.public_id, OPERATOR)
    incident.refresh_from_db()
    return incident


@pytest.mark.parametrize("start", STARTS)
def test_every_verb_leads_from_every_state_where_the_model_says(project, start):
    assert " ".join(after(project, start, verb).status for verb in VERBS) == TRANSITIONS[start]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("verb", VERBS)
def test_undo_leads_back_from_every_change(project, start, verb):
    incident = after(project, start, verb)
    if not incident.loop.activity.exists():
        return
    loop_triage.undo(project.pk, incident.loop.public_id, OPERATOR)
    incident.refresh_from_db()
    wanted = make_incident(project, **STARTS[start])
    fields = ("status", "label", "stays_open", "done_at")
    assert [getattr(incident, name) for name in fields] == [getattr(wanted, name) for name in fields]
    assert (incident.ended_at is None) == (wanted.ended_at is None)


# --- together with detection ---


def only():
    return Incident.objects.get()


def loop_id():
    return only().loop.public_id


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
    assert (only().status, only().recovered, only().stays_open) == ("ended", True, False)
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


def test_a_loop_that_led_to_a_stop_stays_open_until_a_person_closes_it(agent, project):
    for _ in range(8):
        agent.asks()
    work(agent)
    assert (only().status, only().ended_at is not None) == ("open", True)
    loop_triage.assign(project.pk, loop_id(), OPERATOR)
    assert (only().status, only().stays_open) == ("open", True)
    loop_triage.done(project.pk, loop_id(), OPERATOR)
    assert (only().status, only().stays_open) == ("done", False)


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
    assert (only().decision, only().stays_open) == ("stop", True)
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
    assert (only().status, only().stays_open) == ("open", True)
    assert only().activity.filter(action="reopened", actor="system").exists()
    assert AlertEvent.objects.filter(type="reopened").exists()
    assert Session.objects.get().changed_xid >= before


def test_closing_a_loop_keeps_what_its_overdue_approval_changed(agent, project):
    values = {"mode": "ask", "attended": True, "unattended_reaction": "stop"}
    overrides.save_override(project.pk, PROJECT, values, OPERATOR)
    for _ in range(4):
        agent.asks()
    Approval.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    loop_triage.done(project.pk, loop_id(), OPERATOR)
    assert (only().decision, only().status, only().stays_open) == ("stop", "done", False)


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
    loop_triage.fine(project.pk, loop_id(), OPERATOR)
    assert (only().status, only().ended_at, Session.objects.get().state) == ("ended", None, "running")
    for _ in range(6):
        agent.asks()
    assert (only().status, only().count, Session.objects.get().state) == ("ended", 10, "running")
    loop_triage.reopen(project.pk, loop_id(), OPERATOR)
    assert (only().status, Session.objects.get().state) == ("open", "looping")


def test_a_closed_loop_does_not_make_its_session_loop_unless_it_continues(agent, project):
    loop_triage.done(project.pk, warned(agent, project).loop.public_id, OPERATOR)
    assert Session.objects.get().state == "running"
    agent.asks()
    assert Session.objects.get().state == "looping"
    assert sorted(Incident.objects.values_list("status", flat=True)) == ["done", "open"]
