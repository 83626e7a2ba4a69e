"""`GET /search`: contents are found wherever they are, and only while they are stored."""

import json

import psycopg
import pytest
from django.db import connection

from detection.models import Project, SearchBlock, Session
from detection.services.audit import SYSTEM, Actor
from detection.services.projects import projects
from detection.services.retention import erasure
from detection.services.search import indexing
from detection.services.sessions.evaluation import evaluate


def report(api, session, *calls, **more):
    """Report calls with their results, as `(tool, arguments, result)`, and have them evaluated and indexed."""
    events: list[dict[str, object]] = []
    for number, (tool, arguments, result) in enumerate(calls):
        call_id = f"{session}-{len(events)}-{number}"
        common = {"session": session, "call_id": call_id, **more}
        events += [
            {"type": "call", "tool": tool, "arguments": arguments, **common},
            {"type": "result", "content": result, **common},
        ]
    assert api.post("/events", {"events": events}).status_code == 202
    evaluate_and_index()


def evaluate_and_index():
    for session in Session.objects.all():
        evaluate(session.key)
    indexing.index_texts()


def found(api, q, **more):
    answer = api.get("/search", q=q, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def sessions(api, q):
    return [hit["session"] for hit in found(api, q)["items"]]


def test_arguments_results_and_messages_are_found_with_their_call_and_an_excerpt(api):
    report(
        api,
        "tickets/1",
        ("get_order", {"order": "ORD-48213", "note": "fragile"}, "shipped to Oslo"),
        ("get_order", {"order": "ORD-48214"}, "the warehouse timed out"),
    )
    api.post(
        "/events",
        {"events": [{"type": "message", "session": "tickets/1", "content": "Where is my ÖLKANNE?"}]},
    )
    evaluate_and_index()
    (hit,) = found(api, "ord-48213")["items"]
    assert (hit["kind"], hit["call"], hit["tool"], hit["session"]) == ("call", 1, "get_order", "tickets/1")
    (mark,) = hit["marks"]
    assert hit["excerpt"][mark["start"] : mark["end"]] == "ORD-48213"
    (hit,) = found(api, "warehouse")["items"]
    assert (hit["kind"], hit["call"], hit["tool"]) == ("result", 2, "get_order")
    (hit,) = found(api, "ölkanne")["items"]
    assert (hit["kind"], hit["call"], hit["tool"]) == ("message", None, None)


@pytest.mark.parametrize(
    ("q", "is_found"),
    [
        ("48213", True),  # a part of a word
        ("8213", True),
        ("get_order 48213", True),  # the tool's name counts
        ("get_order shipped", True),  # for the result, too
        ("triage shipped", True),  # the agent's as well
        ("48213 shipped", False),  # one in the call, one in the result
        ("48213 absent", False),
        ("48214", False),
        ('"to Oslo"', True),
        ('"Oslo to"', False),
        ('say "hi"', True),
        ("na", True),  # shorter than a piece
        ("zq", False),
        ("東京", True),
        ("東", True),
        ("京東", False),
        ("\U0001f600", True),
        ("%", False),
        ("_order", True),
        ("getXorder", False),
    ],
)
def test_all_words_must_be_in_one_text_or_in_the_names(api, q, is_found):
    arguments = {
        "order": "ORD-48213",
        "said": 'say "hi"',
        "city": "東京",
        "mood": "\U0001f600",
        "name": "Nana",
    }
    report(api, "s-1", ("get_order", arguments, "shipped to Oslo"), agent="triage")
    report(api, "s-2", ("other", {"n": 1}, "nothing"))
    assert bool([hit for hit in found(api, q)["items"] if hit["session"] == "s-1"]) is is_found


def test_a_line_break_within_arguments_is_found(api):
    report(api, "s-1", ("write", {"text": "first line\nsecond line"}, "ok"))
    assert sessions(api, '"first line\nsecond line"') == ["s-1"]


def test_names_of_sessions_and_agents_are_found(api):
    report(api, "customers/acme-4711", ("t", {"a": 1}, "x"), agent="collector")
    (hit,) = found(api, "acme-47")["items"]
    assert (hit["kind"], hit["session"], hit["call"]) == ("session", "customers/acme-4711", None)
    assert sessions(api, "collector") == ["customers/acme-4711"]


def test_pages_follow_one_another_without_gaps_newest_first(api):
    for number in range(7):
        report(api, f"s-{number}", *[("t", {"needle": number, "n": n}, "x") for n in range(3)])
    seen, cursor, pages = [], "", 0
    while cursor is not None:
        page = found(api, "needle", cursor=cursor, limit=4)
        seen += [(hit["session"], hit["call"]) for hit in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert seen == [(f"s-{number}", call) for number in reversed(range(7)) for call in (3, 2, 1)]
    assert pages >= 6
    assert page["searched_calls"] == 21


def test_equal_calls_are_one_hit(api):
    report(api, "s-1", *[("poll", {"job": "needle"}, "pending")] * 30)
    (hit,) = found(api, "needle")["items"]
    assert (hit["times"], hit["call"]) == (30, 30)


def test_long_sessions_are_found_from_end_to_end(api):
    for part in range(6):
        report(
            api,
            "long",
            *[("t", {"n": f"number-{part}-{n}", "pad": f"{n * 7919:x}" * 30}, "x") for n in range(60)],
        )
    blocks = SearchBlock.objects.order_by("first_seq")
    assert len(blocks) > 2
    assert [one.first_seq for one in blocks] == [1, *(one.last_seq + 1 for one in blocks)][:-1]
    for part in range(6):
        assert [hit["call"] for hit in found(api, f"number-{part}-17")["items"] if "17" in hit["excerpt"]][
            -1:
        ] == [part * 60 + 18]


def test_another_project_finds_nothing(api, as_other):
    report(api, "s-1", ("t", {"mine": "needle"}, "x"))
    report(as_other, "s-1", ("t", {"other": "thread"}, "x"))
    assert sessions(api, "needle") == ["s-1"]
    assert found(as_other, "needle")["items"] == []
    assert sessions(as_other, "thread") == ["s-1"]


def test_what_is_redacted_is_not_found(api):
    report(api, "s-1", ("t", {"password": "hunter2hunter2", "user": "nora"}, "ok"))
    assert sessions(api, "nora") == ["s-1"]
    assert sessions(api, "hunter2") == []


def test_what_is_erased_is_not_found_and_leaves_no_index(api, project):
    report(api, "s-1", ("t", {"customer": "needle"}, "x"))
    report(api, "s-2", ("t", {"customer": "needle"}, "x"))
    erasure.request_erasure(project.pk, "session", "s-1", Actor("ana"))
    erasure.run_waiting(lambda: False)
    assert sessions(api, "needle") == ["s-2"]
    assert SearchBlock.objects.filter(project=project).count() == 1


def test_what_was_deleted_a_moment_ago_is_not_found_before_its_index_is_gone(api, project):
    report(api, "s-1", ("t", {"customer": "needle"}, "x"))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM detection_event WHERE project_id = %s", [project.pk])
    assert sessions(api, "needle") == []


def test_calls_that_are_stored_without_contents_are_counted(api, project):
    report(api, "s-1", ("get_order", {"customer": "needle"}, "x"))
    projects.update_project(project.pk, SYSTEM, stores_payloads=False)
    report(api, "s-2", *[("get_order", {"customer": "needle"}, "x")] * 3)
    page = found(api, "needle")
    assert [hit["session"] for hit in page["items"]] == ["s-1"]
    assert (page["searched_calls"], page["without_contents"]) == (4, 3)
    assert set(sessions(api, "get_order")) == {"s-1", "s-2"}


def test_what_waits_for_the_index_is_said(api):
    report(api, "s-1", ("t", {"a": "needle"}, "x"))
    api.post("/events", {"events": [{"type": "message", "session": "s-1", "content": "thread"}]})
    page = found(api, "thread")
    assert (page["items"], page["waiting_sessions"]) == ([], 1)
    evaluate_and_index()
    page = found(api, "thread")
    assert ([hit["kind"] for hit in page["items"]], page["waiting_sessions"]) == (["message"], 0)


@pytest.mark.django_db(transaction=True)
def test_a_search_whose_time_is_over_says_so_and_goes_on(api):
    report(api, "s-1", ("t", {"a": "needle"}, "x"))
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("LOCK TABLE detection_searchblock IN ACCESS EXCLUSIVE MODE")
        # The other one waits for the time that it has, and gives an answer instead of an error.
        page = found(api, "needle", seconds=0.1)
        assert page["items"] == []
        assert page["next_cursor"] is not None
    page = found(api, "needle", cursor=page["next_cursor"])
    assert [hit["session"] for hit in page["items"]] == ["s-1"]
    assert page["next_cursor"] is None


def test_a_project_may_keep_no_index(api, project):
    report(api, "s-1", ("t", {"a": "needle"}, "x"))
    assert api.patch("/project", {"is_searchable": False}).json()["is_searchable"] is False
    indexing.index_texts()
    assert not SearchBlock.objects.filter(project=project).exists()
    answer = api.get("/search", q="needle")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_filter")
    report(api, "s-2", ("t", {"a": "needle"}, "x"))
    assert not SearchBlock.objects.filter(project=project).exists()
    api.patch("/project", {"is_searchable": True})
    indexing.index_texts()
    assert sorted(sessions(api, "needle")) == ["s-1", "s-2"]


@pytest.mark.django_db(transaction=True)
def test_a_project_that_wants_an_index_while_all_are_being_made_gets_its_own(
    api, as_other, other_project, monkeypatch
):
    as_other.patch("/project", {"is_searchable": False})
    events = [{"type": "call", "session": "o-1", "call_id": "c", "tool": "t", "arguments": {"a": "needle"}}]
    assert as_other.post("/events", {"events": events}).status_code == 202
    index_some = indexing._index_some

    def changed_meanwhile(*place):
        if not Project.objects.get(pk=other_project.pk).is_searchable:
            assert as_other.patch("/project", {"is_searchable": True}).status_code == 200
        return index_some(*place)

    monkeypatch.setattr(indexing, "_index_some", changed_meanwhile)
    report(api, "s-1", ("t", {"a": "needle"}, "x"))  # indexes for the first time
    indexing.index_texts()
    assert sessions(api, "needle") == ["s-1"]
    assert sessions(as_other, "needle") == ["o-1"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"q": ""}, {"q": "   "}, {"q": '""'}, {"q": "x" * 1001}, {"q": "a", "cursor": "bogus"}, {"q": "a", "limit": 0},
        {"q": "a", "seconds": 99}, {"q": "a", "page": 2}, {},
    ],
)  # fmt: skip
def test_a_wrong_search_is_refused(api, parameters):
    assert api.get("/search", **parameters).status_code == 422


def test_a_cursor_belongs_to_its_words(api):
    report(api, "s-1", *[("t", {"needle": n}, "thread") for n in range(3)])
    cursor = found(api, "needle", limit=1)["next_cursor"]
    assert api.get("/search", q="thread", cursor=cursor).status_code == 422


def test_the_index_is_made_once(api):
    report(api, "s-1", ("t", {"a": "needle"}, "x"))
    before = json.dumps([*SearchBlock.objects.values_list("first_seq", "last_seq", "events")])
    assert indexing.index_texts() == 0
    assert json.dumps([*SearchBlock.objects.values_list("first_seq", "last_seq", "events")]) == before
    assert Project.objects.filter(is_searchable=True).exists()


def test_lists_search_contents_for_words_and_for_the_field_text(api):
    report(api, "s-1", *[("get_order", {"customer": "needle"}, "broken")] * 6)
    report(api, "s-2", *[("get_order", {"customer": "thread"}, "broken")] * 6)
    assert [row["session"] for row in api.get("/sessions", q="needle").json()["items"]] == ["s-1"]
    assert [row["session"] for row in api.get("/sessions", q="text:needle").json()["items"]] == ["s-1"]
    assert [row["session"] for row in api.get("/sessions", q="-text:needle").json()["items"]] == ["s-2"]
    assert {row["session"] for row in api.get("/sessions", q="text:needle,thread").json()["items"]} == {
        "s-1",
        "s-2",
    }
    assert api.get("/sessions", q="text:needle text:thread").json()["items"] == []
    assert {row["session"] for row in api.get("/sessions", q="text:broken").json()["items"]} == {"s-1", "s-2"}
    assert {row["session"] for row in api.get("/incidents", q="text:needle").json()["items"]} == {"s-1"}
    assert {row["session"] for row in api.get("/incidents", q="needle").json()["items"]} == {"s-1"}
    assert api.get("/incidents", q="text:absent").json()["items"] == []
    assert "is_partial" not in api.get("/sessions", q="needle").json()
    assert api.get("/sessions", q="text:>needle").status_code == 422


def test_the_field_text_sees_only_its_own_project(api, as_other):
    report(api, "s-1", ("t", {"a": "needle"}, "x"))
    report(as_other, "s-1", ("t", {"a": "thread"}, "x"))
    assert as_other.get("/sessions", q="text:needle").json()["items"] == []
    assert as_other.get("/sessions", q="needle").json()["items"] == []


def test_a_list_says_when_more_sessions_may_have_the_words(api, monkeypatch):
    monkeypatch.setattr("detection.selectors.search.LISTED_SESSIONS", 2)
    for number in range(3):
        report(api, f"s-{number}", ("t", {"a": "needle"}, "x"))
    page = api.get("/sessions", q="text:needle").json()
    assert [row["session"] for row in page["items"]] == ["s-2", "s-1"]
    assert page["is_partial"] is True
    # One that was not found must not look like one without the word.
    assert api.get("/sessions", q="-text:needle").status_code == 422
    excluded_by_names = api.get("/sessions", q="-needle").json()
    assert (len(excluded_by_names["items"]), "is_partial" in excluded_by_names) == (3, False)


def test_without_an_index_words_are_searched_in_names_only(api):
    api.patch("/project", {"is_searchable": False})
    report(api, "needle-1", ("t", {"a": "thread"}, "x"))
    assert [row["session"] for row in api.get("/sessions", q="needle").json()["items"]] == ["needle-1"]
    assert api.get("/sessions", q="thread").json()["items"] == []
    assert api.get("/sessions", q="text:thread").status_code == 422


def test_found_sessions_are_erased_each_with_a_receipt(api):
    for number in range(3):
        report(api, f"s-{number}", *[("t", {"customer": "needle", "n": n}, "x") for n in range(4)])
    page = found(api, "needle", by_session=True)
    assert [hit["session"] for hit in page["items"]] == ["s-2", "s-1", "s-0"]
    page = found(api, "needle", by_session=True, limit=2)
    rest = found(api, "needle", by_session=True, limit=2, cursor=page["next_cursor"])
    assert [hit["session"] for hit in page["items"] + rest["items"]] == ["s-2", "s-1", "s-0"]
    answer = api.post("/erasures/sessions", {"sessions": ["s-2", "absent", "s-0", "s-2"]})
    assert answer.status_code == 202
    assert answer.json()["not_found"] == ["absent"]
    assert [item["of"] for item in answer.json()["items"]] == ["session", "session"]
    erasure.run_waiting(lambda: False)
    assert sessions(api, "needle") == ["s-1"] * 4
    states = [api.get(f"/erasures/{item['id']}").json()["state"] for item in answer.json()["items"]]
    assert states == ["finished", "finished"]
    assert api.post("/erasures/sessions", {"sessions": []}).status_code == 422
