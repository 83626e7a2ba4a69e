from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from detection.engine import fold, snapshot
from detection.models import Event, Incident, QuarantinedEvent, Session, TrackerState
from detection.services.events.event_records import EventRecord
from detection.services.sessions import evaluation, folding
from tests.support.threads import in_thread, wait_until_blocked


def test_evaluating_twice_changes_nothing(agent):
    agent.posts(*[agent.call() for _ in range(6)])
    session = Session.objects.get()
    first = evaluation.evaluate(session.key)
    before = list(Incident.objects.values()), list(Session.objects.values())
    second = evaluation.evaluate(session.key)

    assert (first, second) == (6, 0)
    assert (list(Incident.objects.values()), list(Session.objects.values())) == before


@pytest.mark.promise("REL-23")
def test_a_long_backlog_is_taken_in_several_transactions(agent, monkeypatch):
    agent.posts(*[agent.call("read", f'{{"n": {number}}}') for number in range(25)])
    session = Session.objects.get()
    monkeypatch.setattr(folding, "BATCH_EVENTS", 10)

    assert [evaluation.evaluate(session.key) for _ in range(4)] == [10, 10, 5, 0]


def test_an_outdated_state_is_rebuilt_from_the_stored_calls(agent):
    agent.posts(*[agent.call() for _ in range(3)])
    evaluation.evaluate(Session.objects.get().key)
    TrackerState.objects.update(snapshot=b'{"v":-1}', version=0)
    with pytest.raises(snapshot.SnapshotVersionError):
        snapshot.load(b'{"v":-1}')

    assert agent.asks().decision == "block"


@pytest.mark.promise("REL-17")
def test_a_poisonous_event_is_parked_with_its_error_and_the_session_goes_on(agent, monkeypatch):
    agent.posts(*[agent.call("poison" if number == 1 else "search") for number in range(5)])
    sound = fold.observe_call

    def brittle(state, call, *rest):
        if call.tool == "poison":
            raise ZeroDivisionError("no way")
        return sound(state, call, *rest)

    monkeypatch.setattr(fold, "observe_call", brittle)
    session = Session.objects.get()
    evaluation.evaluate(session.key)
    session.refresh_from_db()

    assert session.evaluated_seq == 5
    row = session.quarantined_events.get()
    assert (row.seq, row.type, row.tool) == (2, "call", "poison")
    assert row.error == "call: ZeroDivisionError: no way"
    assert 'raise ZeroDivisionError("no way")' in row.traceback
    assert session.call_count == 5
    assert Incident.objects.get().count == 4


def test_a_poisonous_call_at_the_guard_is_allowed_and_parked(agent, monkeypatch):
    def broken(*_):
        raise KeyError("lost")

    monkeypatch.setattr(fold, "observe_call", broken)

    assert agent.asks().decision == "allow"
    assert QuarantinedEvent.objects.get().seq == 1
    assert Event.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_a_call_is_quarantined_although_another_request_took_its_number(agent, monkeypatch):
    sound = fold.observe_call
    others: list[Any] = []

    def brittle(state, call, *rest):
        if call.tool != "poison":
            return sound(state, call, *rest)
        if not others:
            others.append(in_thread(lambda: agent.asks(agent.call("other", "{}"))))
            wait_until_blocked()
        raise KeyError("lost")

    monkeypatch.setattr(fold, "observe_call", brittle)
    unnamed = EventRecord(type="call", session="s-1", tool="poison", arguments="{}", tokens=3)
    verdict = agent.asks(unnamed).verdicts[0]
    others[0].result()

    session = Session.objects.get()
    calls = {row.tool: row for row in Event.objects.all()}
    number = calls["poison"].seq  # usually 2: the other request waited for the lock
    assert {calls["other"].seq, number} == {1, 2}
    assert calls["poison"].call_id == verdict.call_id == f"seq-{number}"
    assert (calls["other"].call_key != "", calls["poison"].call_key) == (True, "")
    assert QuarantinedEvent.objects.get().seq == number
    assert (session.call_count, session.token_count) == (2, 3)


def test_a_quarantined_call_continues_a_session_that_detection_stopped(agent, monkeypatch):
    def broken(*_):
        raise KeyError("lost")

    for _ in range(8):
        agent.asks()
    assert Session.objects.get().state == "stopped"
    monkeypatch.setattr(fold, "observe_call", broken)

    assert agent.asks(agent.call("other", "{}")).decision == "allow"
    assert Session.objects.get().stopped_by_kind == ""


def test_the_sweeper_finds_what_no_worker_was_told_of(agent):
    agent.posts(*[agent.call() for _ in range(4)])
    early = evaluation.sweep()
    Session.objects.update(pending_since=timezone.now() - timedelta(seconds=3))
    late = evaluation.sweep()

    assert (early, late) == (0, 1)
    assert Incident.objects.exists()
    assert evaluation.sweep() == 0


def test_a_session_that_cannot_be_evaluated_keeps_the_sweeper_from_no_other(agent, monkeypatch):
    broken = agent.session
    for session in (broken, "s-other"):
        agent.session = session
        agent.posts(*[agent.call() for _ in range(4)])
    Session.objects.filter(external_id=broken).update(pending_since=timezone.now() - timedelta(hours=2))
    Session.objects.exclude(external_id=broken).update(pending_since=timezone.now() - timedelta(hours=1))
    evaluate = evaluation.evaluate

    def evaluated(key, *, wait=True):
        if Session.objects.get(pk=key.session_id).external_id == broken:
            raise ZeroDivisionError
        return evaluate(key, wait=wait)

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    assert evaluation.sweep() == 2
    assert Incident.objects.get().session_name == "s-other"


@pytest.mark.promise("REL-13")
def test_the_sweeper_finds_what_was_sent_before_the_clock_went_back(agent):
    agent.posts(*[agent.call() for _ in range(4)])
    Session.objects.update(pending_since=timezone.now() + timedelta(hours=1))

    assert evaluation.sweep() == 1
    assert Incident.objects.exists()


def test_a_closed_loop_that_goes_on_is_a_new_incident(agent, project):
    from detection.services.incidents import loop_triage
    from tests.support.agents import OPERATOR

    for _ in range(4):
        agent.asks()
    loop_triage.done(project.pk, Incident.objects.get().loop.public_id, OPERATOR)
    agent.asks()

    assert sorted(Incident.objects.values_list("status", flat=True)) == ["done", "open"]
    assert Incident.objects.filter(ended_at=None).count() == 1


def test_a_session_that_ends_ends_its_incidents(agent):
    agent.posts(*[agent.call() for _ in range(4)], EventRecord(type="end", session="s-1", content="failed"))
    evaluation.evaluate(Session.objects.get().key)

    incident = Incident.objects.get()
    assert incident.ended_at is not None
    assert incident.recovered is False


def test_what_several_detectors_find_in_the_same_calls_is_one_incident(agent):
    events = []
    for number in range(24):
        tool = ("read_file", "grep", "open")[number % 3]
        events += [agent.call(tool, "{}", call_id=f"c-{number}"), agent.result(f"c-{number}", f"same {tool}")]
    agent.posts(*events)
    evaluation.evaluate(Session.objects.get().key)

    cycle = Incident.objects.get()
    assert cycle.kind == "cycle"
    assert len(cycle.findings) > 1
    assert sorted(cycle.tool.split(" → ")) == ["grep", "open", "read_file"]
    assert cycle.counted_calls == cycle.calls_in_loop <= 24


def test_two_different_loops_of_a_session_are_two_incidents(agent):
    for _ in range(4):
        agent.asks()
    for number in range(8):
        agent.asks(agent.call("read_file", f'{{"path": "{number}"}}'))
    for _ in range(4):
        agent.asks(agent.call("list_jobs", "{}"))

    assert list(Incident.objects.order_by("id").values_list("tool", flat=True)) == ["search_web", "list_jobs"]


def test_what_was_only_reported_is_not_told_as_stopped(agent):
    agent.posts(*[agent.call() for _ in range(5)])
    evaluation.evaluate(Session.objects.get().key)
    reported = Incident.objects.get()
    for _ in range(2):
        agent.asks()
    asked = Incident.objects.get()

    assert (reported.decision, reported.was_guarded, reported.calls_blocked) == ("block", False, 0)
    assert asked.was_guarded
    assert asked.calls_blocked == Session.objects.get().blocked_count > 0
