from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import AlertEvent, AuditEntry, Incident, Session
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.incidents import triage
from detection.services.policies import overrides
from detection.services.sessions import evaluation
from tests.support.agents import OPERATOR


@pytest.fixture
def incident(agent):
    for _ in range(4):
        agent.asks()
    return Incident.objects.get()


def test_acknowledge_resolve_and_reopen_each_leave_activity_and_audit(project, incident):
    triage.acknowledge(project.pk, incident.public_id, OPERATOR)
    triage.resolve(project.pk, incident.public_id, OPERATOR, "fixed the tool")
    row = triage.reopen(project.pk, incident.public_id, OPERATOR)

    actions = [step.action for step in row.activity.all()]
    assert actions[-3:] == ["acknowledged", "resolved", "reopened"]
    own = AuditEntry.objects.filter(subject=incident.public_id, actor="ana")
    assert own.count() == 3
    assert row.status == "open"


def test_undo_restores_what_the_same_person_changed_last(project, incident):
    triage.resolve(project.pk, incident.public_id, OPERATOR)
    row = triage.undo(project.pk, incident.public_id, OPERATOR)

    assert (row.status, row.resolved_at, row.ended_at) == ("open", None, None)
    with pytest.raises(Conflict):
        triage.undo(project.pk, incident.public_id, OPERATOR)


def test_nobody_undoes_what_another_did(project, incident):
    triage.label(project.pk, incident.public_id, OPERATOR, "false_alarm")
    with pytest.raises(Conflict):
        triage.undo(project.pk, incident.public_id, Actor("bob"))


def test_a_snooze_always_ends(project, incident):
    now = timezone.now()
    for wrong in (None, now - timedelta(minutes=1), now + timedelta(days=400)):
        with pytest.raises(Invalid):
            triage.snooze(project.pk, incident.public_id, OPERATOR, until=wrong)
    row = triage.snooze(project.pk, incident.public_id, OPERATOR, until=now + timedelta(hours=1))
    assert row.status == "snoozed"


def test_a_snooze_until_worse_wakes_with_the_next_blocked_call(project, incident, agent):
    triage.snooze(project.pk, incident.public_id, OPERATOR, until_worse=True)
    agent.asks()
    row = Incident.objects.get()

    assert row.status == "open"
    assert row.activity.filter(action="woke").exists()


def test_a_snoozed_loop_that_gets_worse_is_one_alert(project, agent):
    settings = {"mode": ("warn", "block"), "rung_gap_calls": 1}
    overrides.save_override(project.pk, PROJECT, settings, OPERATOR, "watch")
    for _ in range(4):
        agent.asks()
    triage.snooze(project.pk, Incident.objects.get().public_id, OPERATOR, until_worse=True)
    known = [*AlertEvent.objects.values_list("pk", flat=True)]
    agent.asks()
    assert Incident.objects.get().decision == "block"
    assert [event.type for event in AlertEvent.objects.exclude(pk__in=known)] == ["woke"]


def test_a_label_is_one_of_two_words_or_none(project, incident):
    triage.label(project.pk, incident.public_id, OPERATOR, "true_loop")
    with pytest.raises(Invalid):
        triage.label(project.pk, incident.public_id, OPERATOR, "maybe")
    assert triage.label(project.pk, incident.public_id, OPERATOR, "").label == ""


def test_other_projects_incidents_are_not_there(incident):
    with pytest.raises(NotFound):
        triage.acknowledge(10**9, incident.public_id, OPERATOR)


def test_bulk_says_for_each_what_became_of_it(project, incident):
    outcome = triage.bulk(project.pk, [incident.public_id, "inc_none"], "acknowledge", OPERATOR)
    assert outcome == {incident.public_id: "done", "inc_none": "not_found"}


@pytest.mark.servers
def test_the_database_allows_one_active_incident_per_loop_and_session(incident):
    incident.pk, incident.public_id = None, "inc_copy"
    with pytest.raises(IntegrityError), transaction.atomic():
        incident.save(force_insert=True)


def test_what_detection_itself_does_to_an_incident_s_state_is_in_the_audit(incident, agent):
    for number in range(5):
        agent.asks(agent.call("read_file", f'{{"path": "{number}"}}'))

    entries = AuditEntry.objects.filter(subject=incident.public_id, actor="system").order_by("id")
    assert [entry.action for entry in entries] == ["incident.opened", "incident.ended"]


# --- a loop that several detectors found ---


@pytest.fixture
def found_by_two(agent, project):
    """A loop that two detectors found in the same calls, beside the spent budget of the same run."""
    settings = {"mode": "warn", "outcome_max_results": 3, "budget_enabled": True, "budget_max_calls": 10}
    overrides.save_override(project.pk, PROJECT, settings | {"budget_ladder": "observe"}, OPERATOR, "watch")
    for number in range(10):
        agent.posts(agent.call("read_file", "{}", call_id=f"c-{number}"), agent.result(f"c-{number}", "same"))
    evaluation.evaluate(Session.objects.get().key)
    rows = {row.kind: row for row in Incident.objects.filter(ended_at=None)}
    budget = rows.pop("budget")
    (loop,) = rows.values()
    assert set(loop.kinds) >= {"repeat", "outcome"}
    assert budget.kinds == ["budget"]
    return loop


def test_what_people_do_with_a_loop_holds_for_all_its_detectors_but_no_spent_budget(project, found_by_two):
    triage.resolve(project.pk, found_by_two.public_id, OPERATOR, "known")
    assert Incident.objects.get(kind="budget").status == "open"
    assert Incident.objects.exclude(kind="budget").get().status == "resolved"
    triage.undo(project.pk, found_by_two.public_id, OPERATOR)
    assert set(Incident.objects.values_list("status", "ended_at")) == {("open", None)}
    assert Session.objects.get().state == "looping"

    triage.label(project.pk, found_by_two.public_id, OPERATOR, "false_alarm")
    assert Incident.objects.get(kind="budget").label == ""
    triage.undo(project.pk, found_by_two.public_id, OPERATOR)
    assert set(Incident.objects.values_list("label", "status")) == {("", "open")}


def test_a_resolved_loop_that_other_detectors_find_on_is_not_opened_by_undo(project, agent, found_by_two):
    triage.resolve(project.pk, found_by_two.public_id, OPERATOR)
    for number in range(10, 14):
        agent.posts(agent.call("read_file", "{}", call_id=f"c-{number}"), agent.result(f"c-{number}", "same"))
    evaluation.evaluate(Session.objects.get().key)
    undone = triage.undo(project.pk, found_by_two.public_id, OPERATOR)
    assert undone.ended_at is not None
    assert Incident.objects.filter(ended_at=None).exclude(kind="budget").count() == 1
