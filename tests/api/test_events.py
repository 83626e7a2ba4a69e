"""POST /api/v1/events."""

import json

import pytest

from detection.models import Attempt, Event, QuarantinedEvent, Session
from detection.services.ingestion.attempts import recorder
from detection.services.sessions.evaluation import evaluate


def call(number=1, session="s-1", **about):
    return {
        "type": "call",
        "session": session,
        "call_id": f"call-{number}",
        "tool": "search_web",
        "arguments": {"q": "x"},
    } | about


def test_one_event_a_batch_and_lines_are_taken_alike(api):
    one = api.post("/events", call(1))
    batch = api.post("/events", {"events": [call(2), call(3)]})
    lines = api.raw(
        "/events",
        "\n".join(json.dumps(call(n)) for n in (4, 5)) + "\n\n",
        content_type="application/x-ndjson",
    )
    assert [answer.status_code for answer in (one, batch, lines)] == [202, 202, 202]
    assert [answer.json()["accepted"] for answer in (one, batch, lines)] == [1, 2, 2]
    assert one.json()["links"]["session"].endswith("/p/support/sessions/s-1")
    assert [event.seq for event in Event.objects.order_by("seq")] == [1, 2, 3, 4, 5]


def test_everything_that_the_contract_shows_is_stored(api):
    first = {
        "id": "evt-1", "type": "call", "session": "s-42", "run": "r-1", "round": "resp_9", "call_id": "call_7",
        "tool": "search_web", "arguments": {"q": "reset password"}, "occurred_at": "2026-11-21T12:00:00Z",
        "backend": "openai", "model": "gpt-5", "agent": "triage", "parent_session": None,
        "usage": {"input_tokens": 900, "output_tokens": 40, "cost_usd": 0.004},
    }  # fmt: skip
    second = {
        "id": "evt-2",
        "type": "result",
        "session": "s-42",
        "call_id": "call_7",
        "content": "0 hits",
        "is_error": False,
    }
    answer = api.post(
        "/events",
        {
            "events": [
                first,
                second,
                {"type": "message", "session": "s-42", "content": "go on"},
                {"type": "end", "session": "s-42", "outcome": "failed"},
            ]
        },
    )
    assert answer.json()["accepted"] == 4
    assert answer.json()["altered"] == answer.json()["rejected"] == []
    stored = Event.objects.get(seq=1)
    assert (stored.tool, stored.arguments, stored.round, stored.run, stored.tokens) == (
        "search_web",
        '{"q":"reset password"}',
        "resp_9",
        "r-1",
        940,
    )
    assert stored.occurred_at.isoformat() == "2026-11-21T12:00:00+00:00"
    session = Session.objects.get()
    assert (session.backend, session.model, session.agent) == ("openai", "gpt-5", "triage")
    evaluate(session.key)
    page = api.get("/sessions/s-42/calls").json()
    assert page["items"][0]["result"]["content"] == "0 hits"
    assert page["items"][0]["cost_usd"] == 0.004
    assert api.get("/sessions/s-42").json()["state"] == "ended"


def test_an_invalid_event_does_not_affect_its_batch_and_each_has_a_reason(api):
    events = [
        call(1),
        {"type": "call", "session": "s-1"},
        7,
        call(2, usage={"input_tokens": "many"}),
        call(3),
        {"type": "nonsense"},
    ]
    document = api.post("/events", {"events": events}).json()
    assert document["accepted"] == 2
    assert [(item["index"], item["code"], item["path"]) for item in document["rejected"]] == [
        (1, "missing", "tool"),
        (2, "invalid_type", ""),
        (3, "invalid_type", "usage.input_tokens"),
        (5, "invalid_value", "type"),
    ]
    assert all(item["hint"] for item in document["rejected"])


def test_marks_refer_to_the_positions_of_the_request(api):
    events = [7, call(1), {**call(2), "arguments": "{broken"}, {**call(3), "colour": "red"}]
    document = api.post("/events", {"events": events}).json()
    assert document["altered"] == [
        {"index": 2, "marks": ["not_json"]},
        {"index": 3, "marks": ["unknown_field"], "unknown_fields": ["colour"]},
    ]


def test_an_event_counts_once_however_often_it_is_sent(api):
    event = call(1, id="evt-1")
    assert api.post("/events", event).json()["accepted"] == 1
    assert api.post("/events", {"events": [event, {**event, "call_id": "other"}]}).json() | {"request_id": "", "links": {}} == {
        "accepted": 0, "duplicate": 2, "altered": [], "rejected": [], "request_id": "", "links": {},
    }  # fmt: skip
    without_id = call(9)
    assert [api.post("/events", without_id).json()["duplicate"] for _ in range(2)] == [0, 1]


def test_events_of_many_sessions_come_with_a_link_for_each(api):
    document = api.post("/events", {"events": [call(1, session="a/b"), call(1, session="ü")]}).json()
    assert document["links"]["sessions"] == {
        "a/b": "http://127.0.0.1:8300/p/support/sessions/a%2Fb",
        "ü": "http://127.0.0.1:8300/p/support/sessions/%C3%BC",
    }


def test_the_limits_of_a_batch_and_of_an_event_are_those_published(api):
    assert api.post("/events", {"events": [call(n) for n in range(1000)]}).json()["accepted"] == 1000
    refused = api.post("/events", {"events": [call(n) for n in range(1001)]})
    assert (refused.status_code, refused.json()["code"]) == (413, "too_many_events")
    assert api.post("/events", {"events": []}).json()["code"] == "missing"
    document = api.post(
        "/events",
        {"events": [call(1, session="big", arguments={"q": "x" * 300_000}), call(2, session="big")]},
    ).json()
    assert [item["code"] for item in document["rejected"]] == ["event_too_large"]
    assert document["accepted"] == 1
    assert api.post("/events", call(3, arguments={"q": "x" * 300_000})).json()["code"] == "event_too_large"


@pytest.mark.parametrize("content", ["text", {"hits": []}, [1, 2], 7, True, None])
def test_a_results_content_is_text_or_kept_as_json_text(api, content):
    api.post("/events", {"type": "result", "session": "s-1", "call_id": "c", "content": content})
    stored = Event.objects.get()
    assert stored.content == (
        content if content is None or isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    )


def test_deep_json_in_a_results_text_harms_nobody(api):
    for number, text in enumerate(
        ["[" * 900 + "]" * 900, "[" * 5000 + "]" * 5000, '{"password":' * 900 + "1" + "}" * 900]
    ):
        events = [
            call(number),
            {"type": "result", "session": "s-1", "call_id": f"call-{number}", "content": text},
        ]
        assert api.post("/events", {"events": events}).json()["accepted"] == 2
        results = [{"call_id": f"call-{number}", "content": text}]
        assert (
            api.post("/guard", {"session": "s-2", "results": results, "calls": [{"tool": "t"}]}).status_code
            == 200
        )
    evaluate(Session.objects.get(external_id="s-1").key)
    assert not QuarantinedEvent.objects.exists()


def test_calls_without_ids_never_collide_with_ids_of_clients(api):
    bare = {"type": "call", "session": "s-1", "tool": "t"}
    document = api.post("/events", {"events": [bare, {**bare, "call_id": "seq-3"}, bare, bare]}).json()
    assert document["accepted"] == 3
    assert document["rejected"][0]["code"] == "reserved_name"


def test_accepted_and_rejected_attempts_are_recorded_in_the_background(
    api, wsgi_client, key, project, django_assert_num_queries
):
    api.post("/events", {"events": [call(1), {"type": "call"}]})
    api.post("/events", {"events": [call(1)]})
    api.raw("/events", b"{")
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    wsgi_client.post("/events", headers={"Authorization": f"Bearer {wrong}"}, json=call(2))
    wsgi_client.post("/events", json=call(2))
    assert Attempt.objects.count() == 0
    assert recorder.flush() == 5
    noted = {(row.status, row.code): row for row in Attempt.objects.all()}
    assert (noted[202, "missing"].accepted, noted[202, "missing"].rejected) == (1, 1)
    assert noted[202, ""].duplicate == 1
    assert noted[400, "not_json"].project == project
    assert noted[400, "not_json"].key_hint == key[:13]
    assert noted[401, "missing_key"].project is None
    assert (401, "unknown_key") in noted


def test_a_revoked_key_shows_among_the_attempts_of_its_project(wsgi_client, key, project):
    from detection.services import keys
    from detection.services.audit import SYSTEM

    keys.revoke_key(project, key[3:13], SYSTEM)
    wsgi_client.post("/events", headers={"Authorization": f"Bearer {key}"}, json=call())
    recorder.flush()
    assert Attempt.objects.get().project == project


def test_identical_attempts_are_recorded_together(api):
    for _ in range(30):
        api.raw("/events", b"{")
    recorder.flush()
    noted = Attempt.objects.get()
    assert noted.times == 30
