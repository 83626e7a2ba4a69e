"""Clients that share sessions: their transactions wait for one another, but none fails."""

import collections
import json
import random
import threading
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.test import Client

from detection.models import Event, Session
from tests.support.projects import make_key, make_project
from tests.support.threads import all_results, in_thread, wait_until_blocked

pytestmark = pytest.mark.servers
CLIENTS = 3
WINDOW = 8
"""So many sessions are shared at a time; every third batch replaces the oldest one by a new name."""


@pytest.fixture
def key(transactional_db):
    return make_key(make_project("shared"))


def post(key, *names):
    events = [{"type": "call", "session": name, "tool": "search", "arguments": {}} for name in names]
    client = Client(headers={"Authorization": f"Bearer {key}"})
    return client.post("/api/v1/events", json.dumps({"events": events}), content_type="application/json")


def somebody_else():
    """A transaction of somebody else."""
    with psycopg.connect(**connections["default"].get_connection_params()) as transaction:
        yield transaction


other, third = pytest.fixture(somebody_else, name="other"), pytest.fixture(somebody_else, name="third")


def test_a_batch_holds_no_session_while_it_waits_for_the_creation_of_another(key, other):
    post(key, "a")
    project_id = Session.objects.get().project_id
    other.execute(
        "INSERT INTO detection_session (project_id, external_id, agent, backend, model, parent_external_id, is_demo, state, outcome,"
        " last_seq, evaluated_seq, call_count, blocked_count, token_count, cost_usd, last_tool, meter_kind, meter_count, meter_limit,"
        " strip, policy_values, stopped_by, stop_reason) SELECT project_id, 'b', '', '', '', '', false, 'running', '',"
        " 0, 0, 0, 0, 0, 0, '', '', 0, 0, '[]', '{}', '', '' FROM detection_session WHERE project_id = %s",
        [project_id],
    )
    answer = in_thread(post, key, "a", "b")
    wait_until_blocked()
    lock = (
        "SELECT FROM detection_session WHERE project_id = %s AND external_id = 'a' FOR NO KEY UPDATE NOWAIT"
    )
    other.execute(lock, [project_id])
    other.commit()
    assert answer.result().status_code == 202
    assert Session.objects.get(external_id="b").last_seq == 1


@pytest.mark.one_database("says which transaction a deadlock ends")
def test_a_batch_that_postgresql_ended_in_a_deadlock_is_stored_all_the_same(key, other, third):
    """Who waits last finds the deadlock, a second later: the others never look, and all but the batch wait already."""
    post(key, "a", "b", "c")
    lock = "SELECT FROM detection_session WHERE external_id = %s FOR NO KEY UPDATE"
    for transaction, name in ((other, "c"), (third, "b")):
        transaction.execute("SET LOCAL deadlock_timeout = '1h'")
        transaction.execute(lock, [name])
    answer = in_thread(post, key, "a", "b", "c")
    wait_until_blocked()
    waiting = in_thread(other.execute, lock, ["a"])
    wait_until_blocked(2)
    third.commit()
    waiting.result()
    other.commit()
    assert answer.result().json()["accepted"] == 3
    assert [*Session.objects.values_list("last_seq", flat=True)] == [2, 2, 2]
    assert [*Event.objects.order_by("session_id", "seq").values_list("call_id", flat=True)] == [
        "seq-1",
        "seq-2",
    ] * 3


@pytest.mark.parametrize("batches", [90, pytest.param(10_000, marks=pytest.mark.long)])
def test_three_clients_sharing_young_sessions_are_never_turned_away(key, settings, batches):
    settings.KEY_REQUESTS_PER_SECOND = 0
    statuses: collections.Counter[int] = collections.Counter()
    numbers = iter(range(batches))
    lock = threading.Lock()

    def send(seed):
        client, chance = Client(headers={"Authorization": f"Bearer {key}"}), random.Random(seed)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            young = [f"s-{number // 3 + place}" for place in range(WINDOW)]
            names = chance.sample(young, chance.randint(2, 5))
            events = [
                {"type": "call", "session": name, "call_id": f"c-{number}", "tool": "search", "arguments": {}}
                for name in names
            ]
            path = "/api/v1/events"
            body: dict[str, Any] = {"events": events}
            if number % 10 == 0:
                calls = [{"call_id": f"c-{number}", "tool": "search", "arguments": {}}]
                path, body = "/api/v1/guard", {"session": names[0], "calls": calls}
            answer = client.post(path, json.dumps(body), content_type="application/json")
            statuses[answer.status_code] += 1

    for thread in [in_thread(send, seed) for seed in range(CLIENTS)]:
        thread.result(seconds=batches)

    assert statuses.keys() == {200, 202}
    assert statuses.total() == batches
    for session in Session.objects.all():
        seqs = Event.objects.filter(session_id=session.pk).order_by("seq").values_list("seq", flat=True)
        assert [*seqs] == [*range(1, session.last_seq + 1)]


@pytest.mark.parametrize("call_id", [{"id": "c0"}, {}], ids=["own id", "no id"])
def test_a_list_of_messages_that_comes_several_times_at_once_counts_once(key, call_id):
    call = {"type": "function", "function": {"name": "search", "arguments": "{}"}} | call_id
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": [call]}]
    body = {"session": "a", "shape": "openai", "messages": messages}

    def guard():
        client = Client(headers={"Authorization": f"Bearer {key}"})
        answer = client.post("/api/v1/guard", json.dumps(body), content_type="application/json")
        return answer.json()["verdicts"][0]["duplicate"]

    duplicates = all_results([in_thread(guard) for _ in range(4)])
    assert sorted(duplicates) == [False, True, True, True]
    assert Event.objects.count() == 2
