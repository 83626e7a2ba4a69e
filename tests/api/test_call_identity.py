"""Reused call ids, results without one, and calls whose client names no round: through both routes."""

from typing import Any

import pytest

from detection.models import Event, EventType, Incident, Session, call_flags
from detection.services.events.recent_calls import LATEST_EVENTS
from detection.services.sessions.call_identity import SAME_ID_EVENTS
from detection.services.sessions.evaluation import evaluate

CALL = {"call_id": "call_0", "tool": "search", "arguments": {"q": "reset"}}
RESULT = {"call_id": "call_0", "content": "0 hits", "is_error": False}


def evaluated():
    """The session, once all that was posted is evaluated."""
    evaluate(Session.objects.get().key)
    return Session.objects.get()


def guard(api, *calls, results=(), **more):
    answer = api.post("/guard", {"session": "s-1", "calls": calls, "results": results, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def send(api, *events, **more):
    answer = api.post("/events", {"events": [{"session": "s-1", **more, **event} for event in events]})
    assert answer.status_code == 202, answer.text
    return answer.json()


def call(**more):
    return {"type": "call", **CALL, **more}


def result(**more):
    return {"type": "result", **RESULT, **more}


def closes():
    """Which call each result belongs to, by sequence number."""
    rows = Event.objects.filter(type=EventType.RESULT).order_by("seq")
    return [*rows.values_list("seq", "closes")]


@pytest.mark.parametrize("names_rounds", [True, False])
def test_ten_identical_calls_in_ten_rounds_with_one_id_are_stopped_by_the_guard(api, names_rounds):
    decisions: dict[Any, Any] = {}
    for session, call_id in (("reused", "call_0"), ("unique", "call_{}")):
        results: list[Any] = []
        for number in range(10):
            one = {"call_id": call_id.format(number)}
            named = {"round": f"r-{number}"} if names_rounds else {}
            answer = guard(api, CALL | one, results=results, session=session, **named)
            assert not answer["verdicts"][0]["duplicate"]
            decisions.setdefault(session, []).append(answer["decision"])
            results = [RESULT | one | {"content": answer["verdicts"][0]["message"] or "0 hits"}]
    assert decisions["reused"] == decisions["unique"]
    assert {"block", "stop"} & {*decisions["reused"]}
    assert Session.objects.get(external_id="reused").call_count == 10


@pytest.mark.parametrize("names_rounds", [True, False])
@pytest.mark.parametrize("size", [1, 3, 20])
def test_ten_identical_calls_in_ten_rounds_with_one_id_are_ten_reported_calls(api, names_rounds, size):
    events = []
    for number in range(10):
        events += [call(**({"round": f"r-{number}"} if names_rounds else {})), result()]
    for start in range(0, len(events), size):
        assert send(api, *events[start : start + size])["duplicate"] == 0
    assert evaluated().call_count == 10
    incident = Incident.objects.get()
    assert (incident.count, incident.decision) == (10, "stop")
    assert [number for _, number in closes()] == [*range(1, 20, 2)]
    assert [row["result"]["content"] for row in api.get("/sessions/s-1/calls").json()["items"]] == [
        "0 hits"
    ] * 10


def test_an_open_call_that_is_sent_again_is_a_duplicate_on_both_routes(api):
    first = guard(api, CALL)
    again = guard(api, CALL)
    assert [one["verdicts"][0]["duplicate"] for one in (first, again)] == [False, True]
    assert send(api, call(arguments='{"q":   "reset"}'))["duplicate"] == 1
    assert Event.objects.count() == 1


def test_another_call_with_the_id_of_an_open_one_is_a_new_call(api):
    other = call(arguments={"q": "other"})
    assert send(api, call(), other, other)["accepted"] == 2
    verdicts = guard(api, CALL, {**CALL, "tool": "read"})["verdicts"]
    assert [verdict["duplicate"] for verdict in verdicts] == [True, False]


def test_closed_calls_that_are_posted_again_count_again_without_event_ids(api):
    history = [call(), result()]
    with_ids = [{**event, "id": f"e-{number}"} for number, event in enumerate(history)]
    assert [send(api, *with_ids)["accepted"] for _ in range(2)] == [2, 0]
    assert [send(api, *history)["accepted"] for _ in range(2)] == [2, 2]
    assert evaluated().call_count == 3


def test_a_guard_request_with_event_ids_can_be_sent_again_at_any_time(api):
    first = guard(api, {**CALL, "id": "e-1"})
    body = {"results": [RESULT | {"id": "e-2"}]}
    later = [guard(api, {**CALL, "id": "e-3"}, **body) for _ in range(2)]
    late = guard(api, {**CALL, "id": "e-1"})
    duplicates = [answer["verdicts"][0]["duplicate"] for answer in (first, *later, late)]
    assert duplicates == [False, False, True, True]
    assert Event.objects.count() == 3
    assert send(api, call(id="e-3"))["duplicate"] == 1


def test_a_second_result_of_a_call_is_a_duplicate(api):
    assert send(api, call(), result(), result(content="late"))["duplicate"] == 1
    guard(api, results=[RESULT])
    assert closes() == [(2, 1)]


def test_parallel_calls_with_one_id_get_a_result_each(api):
    pages = [call(round="r-1", arguments={"page": page}) for page in (1, 2)]
    send(api, *pages, result(content="one"), result(content="two"), result(content="three"))
    assert closes() == [(3, 1), (4, 2)]
    found = api.get("/sessions/s-1/calls").json()["items"]
    assert [row["result"]["content"] for row in found] == ["one", "two"]


RESULTS_WITHOUT_ID = [
    ({"tool": "b", "arguments": {"y": 1, "page": 2}}, 4),
    ({"tool": "b", "arguments": '{"page": 2, "y": 1}'}, 4),
    ({"tool": "b", "arguments": {"page": 3}}, 0),
    ({"tool": "b"}, 2),
    ({"tool": "c"}, 0),
    ({}, 1),
]


@pytest.mark.parametrize(("named", "seq"), RESULTS_WITHOUT_ID)
@pytest.mark.parametrize("route", ["events", "guard"])
def test_a_result_without_a_call_id_closes_the_oldest_open_call_that_fits(api, named, seq, route):
    send(
        api,
        *(
            {"type": "call", "tool": "ab"[number % 2], "arguments": {"page": number // 2 + 1, "y": 1}}
            for number in range(4)
        ),
    )
    answer = {**named, "content": "text"}
    if route == "events":
        send(api, {"type": "result", **answer})
    else:
        guard(api, results=[answer])
    assert closes() == [(5, seq)]
    evaluated()
    found = {row["seq"]: row for row in api.get("/sessions/s-1/calls").json()["items"]}
    assert [number for number, row in found.items() if row["result"]] == [seq] * bool(seq)
    counted = Event.objects.filter(type=EventType.CALL).exclude(flags__contains=call_flags.PENDING)
    assert [*counted.values_list("seq", flat=True)] == [seq] * bool(seq)


def test_results_without_anything_close_one_call_after_the_other(api):
    for number in range(3):
        guard(api, {"tool": "read", "arguments": {"page": number}})
    guard(api, results=[{"content": "one"}, {"content": "two"}])
    send(api, {"type": "result", "content": "three"}, {"type": "result", "content": "too many"})
    assert [number for _, number in closes()] == [1, 2, 3, 0]


def test_no_result_without_a_call_id_belongs_to_a_blocked_call(api):
    for _ in range(3):
        api.call()
    assert api.call().json()["decision"] == "block"
    guard(api, results=[{"content": str(number)} for number in range(4)])
    assert [number for _, number in closes()] == [1, 2, 3, 0]


def test_ten_calls_and_results_without_ids_are_a_loop(api):
    step = [
        {"type": "call", "tool": "search", "arguments": {"q": 1}},
        {"type": "result", "content": "0 hits"},
    ]
    send(api, *step * 10)
    assert evaluated().call_count == 10
    assert Incident.objects.get().count == 10


def test_arguments_of_a_result_need_its_tool(api):
    wrong = {"type": "result", "session": "s-1", "arguments": {"q": 1}, "content": "x"}
    answer = api.post("/events", wrong)
    assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, "missing", "tool")
    answer = api.post("/guard", {"session": "s-1", "results": [{"arguments": {}}]})
    assert (answer.status_code, answer.json()["path"]) == (422, "results[0].tool")


@pytest.mark.parametrize("name", ["round", "call_id"])
def test_names_that_loopguard_assigns_are_reserved(api, name):
    answer = api.post("/events", {"type": "call", "session": "s-1", "tool": "t", name: "seq-7"})
    assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, "reserved_name", name)


def calls(*numbers):
    return [{**CALL, "call_id": f"c-{number}"} for number in numbers]


def test_the_calls_of_a_guard_request_without_a_round_are_one_round(api):
    answer = guard(api, *calls(1, 2, 3, 4, 5))
    assert [verdict["decision"] for verdict in answer["verdicts"]] == ["allow"] * 5
    assert [guard(api, *calls(number))["decision"] for number in (6, 7, 8)] == ["allow", "allow", "block"]


def test_requests_join_the_open_round_of_a_session_that_reports_results(api):
    guard(api, {"call_id": "a", "tool": "read"})
    guard(api, results=[{"call_id": "a", "content": "text"}])
    parallel = [guard(api, *calls(number))["decision"] for number in range(6)]
    assert parallel == ["allow"] * 6
    waiting, decisions = [*range(6)], []
    for number in range(6, 10):
        results = [{"call_id": f"c-{one}", "content": "0 hits"} for one in waiting]
        decisions.append(guard(api, *calls(number), results=results)["decision"])
        waiting = [number]
    assert decisions[0] == "allow"
    assert decisions[-1] in ("block", "stop"), decisions


def test_a_session_that_never_reports_results_is_judged_request_by_request(api):
    assert [guard(api, *calls(number))["decision"] for number in range(4)] == ["allow"] * 3 + ["block"]


def test_payloads_need_not_be_stored_to_know_a_call_again(api, project):
    project.stores_payloads = False
    project.save()
    send(api, call())
    evaluated()
    assert Event.objects.get().arguments is None
    assert send(api, call(), call(arguments={"q": "other"}))["duplicate"] == 1
    assert guard(api, {**CALL, "arguments": {"q": "other"}})["verdicts"][0]["duplicate"]


@pytest.mark.one_database("reads a plan")
@pytest.mark.parametrize("is_named", [True, False])
def test_recognising_calls_reads_a_bounded_number_of_rows(api, is_named, django_assert_num_queries):
    """A thousand rounds with one id cost no more than a few; only the latest are compared."""
    named = {"call_id": "call_0"} if is_named else {}
    pair = [{"type": "call", "tool": "t"}, {"type": "result", "content": "x"}]
    for _ in range(3):
        send(api, *pair * 100, **named)
    session = Session.objects.get()
    assert session.last_seq == 600
    plan = explained(session, named.get("call_id"))
    assert max(plan) <= (SAME_ID_EVENTS if is_named else LATEST_EVENTS)


def explained(session, call_id):
    """Rows that each node of the plan of the lookup returned."""
    from django.db import connection

    from detection.services.sessions import call_identity

    place = [session.project_id, session.pk]
    text, values = (call_identity._WITH_ID, [*place, call_id]) if call_id else (call_identity._LATEST, place)
    with connection.cursor() as cursor:
        # The plan of a table with more than one session in it, whatever the tests before left in the statistics.
        cursor.execute("ANALYZE detection_event; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", values)
        (plan,) = cursor.fetchone()
    rows, nodes = [], [plan[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        rows.append(node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        nodes += node.get("Plans", [])
    return rows
