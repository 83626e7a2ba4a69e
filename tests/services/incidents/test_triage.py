from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from detection.models import AuditEntry, Incident
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.incidents import triage
from tests.support.agents import OPERATOR

pytestmark = pytest.mark.servers


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
    for wrong in ({}, {"until": now - timedelta(minutes=1)}, {"until": now + timedelta(days=400)}):
        with pytest.raises(Invalid):
            triage.snooze(project.pk, incident.public_id, OPERATOR, **wrong)
    row = triage.snooze(project.pk, incident.public_id, OPERATOR, until=now + timedelta(hours=1))
    assert row.status == "snoozed"


def test_a_snooze_until_worse_wakes_with_the_next_blocked_call(project, incident, agent):
    triage.snooze(project.pk, incident.public_id, OPERATOR, until_worse=True)
    agent.asks()
    row = Incident.objects.get()

    assert row.status == "open"
    assert row.activity.filter(action="woke").exists()


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


def test_the_database_allows_one_active_incident_per_loop_and_session(incident):
    incident.pk, incident.public_id = None, "inc_copy"
    with pytest.raises(IntegrityError), transaction.atomic():
        incident.save(force_insert=True)


def test_what_detection_itself_does_to_an_incident_s_state_is_in_the_audit(incident, agent):
    for number in range(5):
        agent.asks(agent.call("read_file", f'{{"path": "{number}"}}'))

    entries = AuditEntry.objects.filter(subject=incident.public_id, actor="system").order_by("id")
    assert [entry.action for entry in entries] == ["incident.opened", "incident.ended"]
