from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.models import Event, Incident, Project, Session
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import STORED_RESULT_CHARACTERS
from detection.services.sessions import evaluation
from tests.support.agents import Agent
from tests.support.threads import all_results, in_thread


def rounds(agent, count, tool="search_web", *, with_ids=False):
    for number in range(count):
        ids = [{"id": f"{kind}-{number}"} if with_ids else {} for kind in ("call", "result")]
        yield agent.call(tool, '{"q": "x"}', call_id=f"c-{number}", **ids[0])
        yield agent.result(f"c-{number}", "0 hits", **ids[1])


def test_events_are_stored_in_order_and_a_worker_finds_the_loop(agent):
    done = agent.posts(*rounds(agent, 5))
    session = Session.objects.get()
    evaluation.evaluate(session.key)

    assert (done.accepted, done.duplicate) == (10, 0)
    assert [event.seq for event in Event.objects.order_by("seq")] == [*range(1, 11)]
    incident = Incident.objects.get()
    assert incident.count == 5
    assert incident.evidence["calls"][0]["result"] == "0 hits"
    session.refresh_from_db()
    assert session.state == "looping"
    assert len(session.strip) == 5


def test_sending_a_batch_again_counts_nothing_twice(agent):
    batch = [*rounds(agent, 3, with_ids=True)]
    agent.posts(*batch)
    again = agent.posts(*batch)
    evaluation.evaluate(Session.objects.get().key)

    assert (again.accepted, again.duplicate) == (0, 6)
    assert Session.objects.get().call_count == 3


def test_an_event_id_counts_once_in_the_project_whatever_session_it_names(principal):
    one, two = Agent(principal, "one"), Agent(principal, "two")
    one.posts(one.call(id="evt-1"))
    done = two.posts(two.call(id="evt-1"), two.call(id="evt-2"))

    assert (done.accepted, done.duplicate) == (1, 1)


@pytest.mark.promise("REL-11")
@pytest.mark.servers
def test_the_same_batch_over_many_connections_is_stored_once(transactional_db):
    project = Project.objects.create(slug="p", name="P")
    from detection.services.keys import Principal

    agent = Agent(Principal(0, "x", project.pk, "p", frozenset(), False, None, b"secret"))
    batch = [*rounds(agent, 10, with_ids=True)]
    outcomes: list[Any] = []

    def send():
        # Each request has records of its own: their numbers are written into them.
        outcomes.extend(agent.posts(*deepcopy(batch)) for _ in range(3))

    all_results([in_thread(send) for _ in range(6)])

    assert sum(done.accepted for done in outcomes) == 20
    assert Event.objects.filter(session__project=project).count() == 20


@pytest.mark.servers
def test_a_new_session_starts_in_the_partition_of_this_week(agent):
    agent.posts(agent.call())
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM detection_event")
        assert cursor.fetchone()[0] != "detection_event_rest"


@pytest.mark.promise("SEC-17")
def test_secrets_are_replaced_by_keyed_marks_before_anything_is_stored(agent):
    agent.posts(
        agent.call("login", '{"user": "ann", "password": "hunter2hunter2"}', call_id="a"),
        agent.result("a", "Authorization: Bearer abcdefghijklmnop1234"),
        agent.call("login", '{"user": "ann", "password": "other-secret"}', call_id="b"),
        agent.call("login", '{"user": "ann", "password": "hunter2hunter2"}', call_id="c"),
    )
    stored = {row.call_id + row.type: row for row in Event.objects.all()}
    evaluation.evaluate(Session.objects.get().key)
    keys = {row.call_id: row.call_key for row in Event.objects.filter(type="call")}

    assert "hunter2" not in stored["acall"].arguments
    assert "abcdefghijklmnop" not in stored["aresult"].content
    assert keys["a"] == keys["c"] != keys["b"]


def test_a_long_result_is_cut_and_still_tells_its_end_apart(agent):
    long = "x" * STORED_RESULT_CHARACTERS
    agent.posts(
        agent.call("read", "{}", call_id="a"),
        agent.result("a", long + "1"),
        agent.call("read", "{}", call_id="b"),
        agent.result("b", long + "2"),
    )
    evaluation.evaluate(Session.objects.get().key)
    one, two = Event.objects.filter(type="result").order_by("seq")

    assert len(one.content) == STORED_RESULT_CHARACTERS
    assert one.content_length == STORED_RESULT_CHARACTERS + 1
    assert one.result_digest != two.result_digest


@pytest.mark.promise("REL-13")
def test_the_clock_of_a_client_changes_no_finding(agent):
    year = timedelta(days=365)
    for number, shift in enumerate((timedelta(0), -year, year, -year)):
        agent.posts(agent.call(call_id=f"c-{number}", occurred_at=timezone.now() + shift))
    evaluation.evaluate(Session.objects.get().key)

    assert Incident.objects.get().count == 4
    assert Event.objects.filter(occurred_at__gt=timezone.now()).count() == 1


@pytest.mark.promise("REL-33")
def test_a_late_event_reopens_a_session_that_ended(agent):
    agent.posts(agent.call(), EventRecord(type="end", session="s-1", content="completed"))
    evaluation.evaluate(Session.objects.get().key)
    ended = Session.objects.get()
    agent.posts(agent.call())
    evaluation.evaluate(ended.key)

    assert (ended.state, ended.outcome) == ("ended", "completed")
    assert Session.objects.get().state == "running"


def test_a_command_in_a_user_message_holds_for_the_calls_after_it(agent):
    agent.posts(
        EventRecord(type="message", session="s-1", content="!/set(tool-loop-max-repeats=2)"),
        agent.call(),
        agent.call(),
    )
    evaluation.evaluate(Session.objects.get().key)

    assert Session.objects.get().policy_values == {"max_repeats": 2}
    assert Incident.objects.get().count == 2


@pytest.mark.promise("REL-12")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 23), max_size=5), seed=st.integers(0, 10_000))
def test_however_a_run_is_cut_into_batches_it_comes_to_the_same(principal, cuts, seed):
    tools = ["a", "b", "a", "b", "a", "b", "c", "c", "c", "c", "c", "d"]
    outcomes = []
    for name, limits in ((f"whole-{seed}", []), (f"cut-{seed}", sorted(set(cuts)))):
        Session.objects.filter(external_id=name).delete()
        agent = Agent(principal, name)
        events = []
        for number, tool in enumerate(tools):
            events += [
                agent.call(tool, "{}", call_id=f"{name}-{number}"),
                agent.result(f"{name}-{number}", tool),
            ]
        for start, stop in zip([0, *limits], [*limits, len(events)], strict=True):
            agent.posts(*events[start:stop])
            evaluation.evaluate(Session.objects.get(external_id=name).key)
        session = Session.objects.get(external_id=name)
        incidents = session.incidents.order_by("first_seq", "kind").values_list(
            "kind", "count", "decision", "first_seq"
        )
        outcomes.append((session.call_count, [mark for _, _, mark, _ in session.strip], list(incidents)))
        Event.objects.filter(session_id=session.pk).delete()
        session.incidents.all().delete()
        session.delete()

    assert outcomes[0] == outcomes[1]
