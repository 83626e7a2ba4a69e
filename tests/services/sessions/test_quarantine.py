"""Events whose evaluation raises: all are kept with their tracebacks, in linear time, and can be retried."""

from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from detection.engine import fold
from detection.models import AuditEntry, Event, Incident, QuarantinedEvent, Role, Session, TrackerState
from detection.selectors.quarantine import list_quarantined, quarantine_counts
from detection.services.errors import NotFound
from detection.services.sessions import quarantine
from detection.services.sessions.evaluation import evaluate
from tests.support.agents import OPERATOR
from tests.support.projects import make_member
from tests.support.statements import sent_messages


@dataclass(frozen=True)
class Defect:
    """The numbers of the calls that the engine was given, and a function that fixes it."""

    work: list[int]
    fix: Callable[..., None]


@pytest.fixture
def defect(monkeypatch):
    """A defect of the engine that calls of some tools meet."""
    sound = fold.observe_call
    work = []

    def brittle(state, call, *rest):
        work.append(call.seq)
        if call.tool.startswith("poison"):
            raise ZeroDivisionError(f"no way for {call.tool}\x00\udfff")
        return sound(state, call, *rest)

    def fix(work_like=sound):
        monkeypatch.setattr(fold, "observe_call", work_like)

    monkeypatch.setattr(fold, "observe_call", brittle)
    return Defect(work, fix)


def poisoned(agent, count):
    """Post calls, of which nine in ten cannot be evaluated; return the row of their session."""
    agent.posts(*[agent.call("poison" if n % 10 else "read", f'{{"n": {n}}}') for n in range(count)])
    return Session.objects.get(external_id=agent.session)


def test_all_of_many_events_are_quarantined_with_their_tracebacks_in_linear_time(agent, defect, project):
    costs = []
    for count in (60, 120):
        agent.session = f"s-{count}"
        session = poisoned(agent, count)
        defect.work.clear()
        with sent_messages() as sent:
            assert evaluate(session.key) == count
        costs.append((len(defect.work), len(sent)))
        rows = QuarantinedEvent.objects.filter(session=session)
        assert rows.count() == count * 9 // 10
        assert all('raise ZeroDivisionError(f"no way for' in row.traceback for row in rows)
    (folds, messages), (folds_of_twice, messages_of_twice) = costs
    assert folds_of_twice < 2.3 * folds
    assert messages_of_twice < 2.3 * messages
    counts = quarantine_counts(project.pk)
    assert (counts.events, counts.sessions) == (162, 2)
    assert len(list_quarantined(project.pk, "s-60", limit=100).items) == 54


def test_an_event_that_fails_alone_costs_few_transactions(agent, defect):
    agent.posts(*[agent.call("poison" if n == 500 else "read", f'{{"n": {n}}}') for n in range(600)])
    evaluate(Session.objects.get().key)
    assert len(defect.work) < 1.9 * 600


def test_stored_events_that_fail_at_the_guard_are_evaluated_as_by_a_worker(agent, defect):
    session = poisoned(agent, 100)
    defect.work.clear()
    assert agent.asks().decision == "allow"
    session.refresh_from_db()
    assert (session.evaluated_seq, session.quarantined_events.count()) == (101, 90)
    assert len(defect.work) < 400


@pytest.mark.promise("REL-17")
def test_a_retry_evaluates_events_in_their_place_and_reports_the_loop(agent, defect, project):
    calls = [agent.call("poison", round=f"r-{number}") for number in range(5)]
    agent.posts(calls[0], agent.result("call_0"), *calls[1:])
    session = Session.objects.get()
    evaluate(session.key)
    assert not Incident.objects.exists()
    defect.fix()
    assert quarantine.retry(project.pk, "s-1", OPERATOR) == quarantine.RetryResult(evaluated=5)

    session.refresh_from_db()
    stored = Event.objects.filter(type="call").order_by("seq")
    assert not QuarantinedEvent.objects.exists()
    assert len({row.call_key for row in stored}) == 1
    assert stored[0].call_key
    assert [row.flags for row in stored] == [cell[2] for cell in session.strip] == ["^", "?", "?", "?", "?"]
    assert [cell[1] for cell in session.strip] == [stored[0].call_key[:6]] * 5
    assert {row.decision for row in stored} == {"allow"}
    assert session.call_count == 5
    incident = Incident.objects.get()
    assert (incident.tool, incident.count, session.state) == ("poison", 5, "looping")
    entry = AuditEntry.objects.get(action="session.quarantine.retry")
    assert (entry.actor, entry.after) == ("ana", {"evaluated": 5, "failed": 0, "expired": 0})
    with pytest.raises(NotFound):
        quarantine.retry(project.pk, "s-1", OPERATOR)


def test_what_fails_again_stays_with_its_new_error_and_leaves_no_trace(agent, defect, project, monkeypatch):
    agent.posts(agent.call("poison a"), agent.call("poison b"), agent.call("read"))
    evaluate(Session.objects.get().key)
    defect.fix()
    sound = fold.observe_call

    def halfway(state, call, *rest):
        step = sound(state, call, *rest)
        if call.tool == "poison b":
            raise KeyError("half done")
        return step

    defect.fix(halfway)
    assert quarantine.retry(project.pk, "s-1", OPERATOR) == quarantine.RetryResult(evaluated=1, failed=1)
    row = QuarantinedEvent.objects.get()
    assert (row.seq, row.error) == (2, "call: KeyError: 'half done'")
    assert 'raise KeyError("half done")' in row.traceback
    before = bytes(TrackerState.objects.get().snapshot)
    assert quarantine.retry(project.pk, "s-1", OPERATOR, [2]).failed == 1
    assert bytes(TrackerState.objects.get().snapshot) == before
    assert b"poison b" not in before


def test_a_state_is_rebuilt_without_quarantined_events_and_without_calls_that_cannot_be_told_apart(
    agent, defect, project
):
    agent.posts(*[agent.call("poison") for _ in range(4)])
    evaluate(Session.objects.get().key)
    TrackerState.objects.update(snapshot=b'{"v":-1}', version=0)
    assert agent.asks(agent.call("read", "{}")).decision == "allow"
    assert QuarantinedEvent.objects.count() == 4

    project.stores_payloads = False
    project.save()
    for number in range(6):
        agent.asks(agent.call("read", f'{{"n": {number}}}'))
    TrackerState.objects.update(snapshot=b'{"v":-1}', version=0)
    assert agent.asks(agent.call("read", '{"n": 6}')).decision == "allow"
    defect.fix()
    assert quarantine.retry(project.pk, "s-1", OPERATOR) == quarantine.RetryResult(expired=4)


@pytest.mark.django_db(transaction=True)
def test_what_fails_again_is_behind_the_rest_the_next_time(agent, defect, project, monkeypatch):
    monkeypatch.setattr(quarantine, "MAX_SESSIONS", 2)
    for number in range(3):
        agent.session = f"s-{number}"
        agent.posts(agent.call("poison", f'{{"n": {number}}}'))
        evaluate(Session.objects.get(external_id=agent.session).key)
    first, second = (quarantine.retry_all(project.pk, OPERATOR) for _ in range(2))
    assert (first.failed, second.failed) == (2, 2)
    tried = AuditEntry.objects.filter(action="session.quarantine.retry").values_list("subject", flat=True)
    assert {*tried} == {"s-0", "s-1", "s-2"}


def test_events_are_listed_and_retried_on_the_screen_by_those_who_may(agent, defect, project):
    poisoned(agent, 20)
    evaluate(Session.objects.get().key)
    defect.fix()
    client, url = Client(), f"/p/{project.slug}/quarantined-events"
    client.force_login(make_member(project, Role.VIEWER))
    page = client.get(url).text
    assert page.count("ZeroDivisionError: no way for poison") == 2 * 18
    assert ">Retry</button>" not in page
    assert client.post(url).status_code == 403

    client.force_login(make_member(project, Role.OPERATOR))
    assert "18 in 1 session" in client.get(f"/p/{project.slug}/system").text
    session_page = " ".join(client.get(f"/p/{project.slug}/sessions/s-1").text.split())
    assert "18 events could not be evaluated" in session_page
    assert ">Retry</button>" in client.get(url).text
    one = client.post(url, {"session": "s-1", "seq": "2", "shown": "s-1"}, follow=True)
    assert "1 evaluated, 0 failed again" in one.text
    assert "17 in 1" in " ".join(one.text.split())
    assert "17 evaluated" in client.post(url, follow=True).text
    assert "No quarantined events" in client.get(url).text
    assert "no longer quarantined" in client.post(url, {"session": "s-1"}, follow=True).text


def test_events_are_listed_and_retried_on_the_command_line(agent, defect, project):
    poisoned(agent, 20)
    evaluate(Session.objects.get().key)

    def run(*options):
        out = StringIO()
        call_command("quarantine", *options, stdout=out)
        return out.getvalue()

    listed = run("--project", project.slug, "--tracebacks")
    assert f"{project.slug} 's-1' #2 call 'poison': call: ZeroDivisionError" in listed
    assert listed.count("Traceback (most recent call last)") == 18
    assert listed.endswith("18 quarantined events.\n")
    assert run("--session", "another") == "0 quarantined events.\n"
    with pytest.raises(CommandError, match="failed again"):
        run("--retry")
    defect.fix()
    assert run("--retry").startswith("18 evaluated, 0 failed again")
    assert run() == "0 quarantined events.\n"
    with pytest.raises(CommandError, match="no project"):
        run("--project", "another")


def test_retried_calls_show_their_results_whatever_would_be_answered_now(agent, defect, project):
    for number in range(8):
        result = agent.result(f"c-{number}", "denied", is_error=True)
        agent.posts(agent.call("poison", "{}", call_id=f"c-{number}"), result)
    session = Session.objects.get()
    evaluate(session.key)
    defect.fix()
    quarantine.retry(project.pk, session.external_id, OPERATOR)
    calls = Event.objects.filter(session_id=session.pk, type="call").order_by("seq")
    assert [*calls.values_list("decision", "flags")] == [("allow", "!")] * 8
    assert Incident.objects.get(kind="repeat").decision in ("block", "stop")
