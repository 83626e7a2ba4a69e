import pytest
from django.db import IntegrityError, transaction

from detection.engine.scopes import PROJECT
from detection.models import AlertEvent, AuditEntry, Incident, Session
from detection.services.incidents import loop_changes, loop_triage
from detection.services.policies import overrides
from detection.services.sessions import evaluation
from tests.support.agents import OPERATOR, Agent


@pytest.fixture
def incident(agent):
    for _ in range(4):
        agent.asks()
    return Incident.objects.get()


def test_undo_restores_what_a_verb_changed_of_an_incident(project, incident):
    loop_triage.done(project.pk, incident.loop.public_id, OPERATOR)
    assert Incident.objects.get().status == "done"
    loop_triage.undo(project.pk, incident.loop.public_id, OPERATOR)
    row = Incident.objects.get()
    assert (row.status, row.done_at, row.ended_at) == ("open", None, None)
    assert [step.action for step in row.activity.all()][-2:] == ["done", "undone"]


def test_a_verb_is_one_alert_and_one_audit_entry_however_many_incidents_it_closes(project, agent):
    overrides.save_override(project.pk, PROJECT, {"mode": "warn"}, OPERATOR, "only warn")
    first, second = agent, Agent(agent.principal, "s-2")
    for _ in range(4):
        first.asks()
        second.asks()
    assert Incident.objects.count() == 2
    loop_id = Incident.objects.values_list("loop__public_id", flat=True).distinct().get()
    known = [*AlertEvent.objects.values_list("pk", flat=True)]
    loop_triage.done(project.pk, loop_id, OPERATOR, "fixed the tool")
    event = AlertEvent.objects.exclude(pk__in=known).get()
    assert event.facts["status"] == "done"
    assert (event.type, event.actor, event.facts["loop_id"], event.facts["note"]) == (
        "done", "ana", loop_id, "fixed the tool",
    )  # fmt: skip
    entries = AuditEntry.objects.filter(actor="ana", action__regex="^(loop|incident)")
    assert [(entry.action, entry.subject) for entry in entries] == [("loop.done", loop_id)]

    known.append(event.pk)
    first.asks()
    again = AlertEvent.objects.exclude(pk__in=known).get()
    assert (again.type, again.facts["also"]) == ("returned", ["opened"])
    second.asks()
    assert AlertEvent.objects.exclude(pk__in=[*known, again.pk]).get().type == "opened", "it is open already"


def test_a_verb_that_is_undone_while_it_is_carried_out_changes_nothing_more(project, agent, monkeypatch):
    overrides.save_override(project.pk, PROJECT, {"mode": "warn"}, OPERATOR, "only warn")
    sessions = [agent, *(Agent(agent.principal, f"s-{number}") for number in (2, 3, 4))]
    for _ in range(4):
        for one in sessions:
            one.asks()
    assert Incident.objects.count() == 4
    loop_id = Incident.objects.values_list("loop__public_id", flat=True).distinct().get()
    apply, done = loop_changes._apply, []

    def undone_after_the_second(change, public_id):
        changed = apply(change, public_id)
        done.append(public_id)
        if len(done) == 2:  # a person, in another process
            loop_triage.undo(project.pk, loop_id, OPERATOR)
        return changed

    monkeypatch.setattr(loop_changes, "_apply", undone_after_the_second)
    loop_triage.done(project.pk, loop_id, OPERATOR)
    assert {*Incident.objects.values_list("status", flat=True)} == {"open"}


def test_what_is_recorded_only_sends_nothing_when_a_person_closes_it(project, agent):
    overrides.save_override(project.pk, PROJECT, {"mode": "observe"}, OPERATOR, "only record")
    for _ in range(4):
        agent.asks()
    loop_triage.done(project.pk, Incident.objects.get().loop.public_id, OPERATOR)
    assert not AlertEvent.objects.exists()


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
    loop_id = found_by_two.loop.public_id
    loop_triage.done(project.pk, loop_id, OPERATOR, "known")
    assert Incident.objects.get(kind="budget").status == "open"
    assert Incident.objects.exclude(kind="budget").get().status == "done"
    loop_triage.undo(project.pk, loop_id, OPERATOR)
    assert set(Incident.objects.values_list("status", "ended_at")) == {("open", None)}
    assert Session.objects.get().state == "looping"

    loop_triage.fine(project.pk, loop_id, OPERATOR)
    assert Incident.objects.get(kind="budget").label == ""
    loop_triage.undo(project.pk, loop_id, OPERATOR)
    assert set(Incident.objects.values_list("label", "status")) == {("", "open")}


def test_a_closed_loop_that_other_detectors_find_on_is_not_opened_by_undo(project, agent, found_by_two):
    loop_triage.done(project.pk, found_by_two.loop.public_id, OPERATOR)
    for number in range(10, 14):
        agent.posts(agent.call("read_file", "{}", call_id=f"c-{number}"), agent.result(f"c-{number}", "same"))
    evaluation.evaluate(Session.objects.get().key)
    loop_triage.undo(project.pk, found_by_two.loop.public_id, OPERATOR)
    found_by_two.refresh_from_db()
    assert found_by_two.ended_at is not None
    assert Incident.objects.filter(ended_at=None).exclude(kind="budget").count() == 1
