"""Every row of the hostile-JSON table gives its promised answer, on every route, on the outside and inside strings."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.api.app import api as ninja_api
from detection.models import Event, EventType
from tests.support.projects import make_key, make_project
from tests.support.shared_rows import shared_rows


@pytest.fixture(scope="module")
def shared(django_db_setup, django_db_blocker):
    with shared_rows(django_db_blocker):
        project = make_project("support")
        yield project, make_key(project)


@pytest.fixture
def project(shared, db):
    return shared[0]


@pytest.fixture
def key(shared, db):
    return shared[1]


# What stands in the place of a value, and what is promised: a status and code, or a mark on what is stored.
VALUES = {
    "nul escape": (rb'"a\u0000b"', "nul"),
    "nul escape in a key": (rb'{"a\u0000b": 1}', "nul"),
    "raw nul": (b'"a\x00b"', (400, "not_json")),
    "high surrogate": (rb'"\ud800"', "surrogate"),
    "low surrogate": (rb'"\udc00"', "surrogate"),
    "surrogate in a key": (rb'{"\ud800": 1}', "surrogate"),
    "invalid utf-8": (b'"\xff"', (400, "not_json")),
    "overlong utf-8": (b'"\xc0\x80"', (400, "not_json")),
    "encoded surrogate": (b'"\xed\xa0\x80"', (400, "not_json")),
    "nan": (b"NaN", (400, "not_json")),
    "infinity": (b"-Infinity", (400, "not_json")),
    "1e400": (b"1e400", (422, "number_range")),
    "1e131071": (b"1e131071", (422, "number_range")),
    "2 to the 64": (b"18446744073709551616", None),
    "65 digits": (b"1" * 65, (422, "number_too_long")),
    "5000 digits": (b"1" * 5000, (422, "number_too_long")),
    "doubled key": (b'{"a": 1, "a": 2}', "duplicate_key"),
    "depth 500": (b"[" * 500 + b"]" * 500, (422, "too_deep")),
    "depth 1100": (b"[" * 1100 + b"]" * 1100, (422, "too_deep")),
    "depth 20000": (b"[" * 20000 + b"]" * 20000, (422, "too_deep")),
    "deep objects": (b'{"a":' * 1100 + b"1" + b"}" * 1100, (422, "too_deep")),
    "too many nodes": (b"[" + b",".join([b"1"] * 10_001) + b"]", (422, "too_many_nodes")),
    "long key": (b'{"' + b"k" * 257 + b'": 1}', (422, "key_too_long")),
    "number and word": (b'{"one": 1, "float": 1.0, "word": true}', None),
    "decomposed accent": ('"e\u0301"'.encode(), None),
}
FORMS = ("single", "batch", "lines", "guard")


def body_of(form, arguments):
    call = b'"session": "s-1", "call_id": "c-1", "tool": "search_web", "arguments": ' + arguments
    if form == "guard":
        return b'{"session": "s-1", "calls": [{' + call + b"}]}"
    event = b'{"type": "call", ' + call + b"}"
    good = b'{"type": "call", "session": "s-2", "call_id": "good", "tool": "read_file"}'
    if form == "single":
        return event
    if form == "lines":
        return event.replace(b"\n", b"") + b"\n" + good + b"\n"
    return b'{"events": [' + event + b", " + good + b"]}"


def send(api, form, arguments):
    path = "/guard" if form == "guard" else "/events"
    kind = "application/x-ndjson" if form == "lines" else "application/json"
    return api.raw(path, body_of(form, arguments), content_type=kind)


@pytest.mark.promise("REL-16")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", VALUES)
def test_a_hostile_value_in_arguments_gets_its_promised_answer(api, name, form):
    value, promise = VALUES[name]
    answer = send(api, form, b'{"q": ' + value + b"}")
    check(answer, form, promise)


@pytest.mark.promise("REL-16")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", [name for name in VALUES if name not in ("invalid utf-8", "overlong utf-8", "encoded surrogate")]
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_same_value_in_json_inside_a_string_is_rejected_or_marked(api, name, form, is_whole):
    value, promise = VALUES[name]
    inner = json.dumps('{"q": ' + value.decode() + "}").encode()
    if isinstance(promise, tuple) and promise[0] == 400:
        promise = "not_json"  # text that a model wrote wrongly is kept as text
    answer = send(api, form, inner if is_whole else b'{"body": ' + inner + b"}")
    check(answer, form, promise)


def check(answer, form, promise):
    if isinstance(promise, tuple):
        assert_refused(answer, form, *promise)
        return
    document = answer.json()
    assert answer.status_code == (200 if form == "guard" else 202), document
    assert not document.get("rejected")
    marks = [mark for item in document.get("altered", []) for mark in item["marks"]]
    assert (promise in marks) if promise else marks == []
    stored = Event.objects.get(type=EventType.CALL, call_id="c-1")
    assert "\x00" not in stored.arguments
    assert (stored.altered.split(",") if stored.altered else []) == marks


def assert_refused(answer, form, status, code):
    if form == "lines" or (form == "batch" and status != 400):
        document = answer.json()
        assert answer.status_code == 202
        assert [item["code"] for item in document["rejected"]] == [code]
        assert document["rejected"][0]["index"] == 0
        assert document["accepted"] == 1
    else:
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == code


@pytest.mark.parametrize("form", ["single", "guard"])
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("tool", '"a\\u0000b"', "invalid_characters"),
        ("tool", '"\\ud800"', "invalid_characters"),
        ("tool", '"' + "x" * 129 + '"', "too_long"),
        ("tool", "7", "invalid_type"),
        ("tool", "null", "missing"),
        ("session", '"\\u202e"', "invalid_value"),
        ("call_id", '"' + "x" * 257 + '"', "too_long"),
        ("call_id", '"seq-12"', "reserved_name"),
        ("arguments", "[1]", "invalid_type"),
        ("usage", '{"input_tokens": -1}', "out_of_range"),
        ("usage", '{"input_tokens": 1e300}', "invalid_type"),
        ("usage", '{"cost_usd": 1e300}', "out_of_range"),
        ("usage", '{"cost_usd": 1e400}', "number_range"),
        ("occurred_at", '"2026-11-21T12:00:00"', "invalid_value"),
        ("occurred_at", '"0001-01-01T00:00:00+14:00"', "invalid_value"),
        ("occurred_at", '"9999-12-31T23:59:59-14:00"', "invalid_value"),
        ("is_error", "1", "invalid_type"),
    ],
)
def test_a_field_that_is_wrong_is_named(api, form, field, value, code):
    call = {"session": "s-1", "call_id": "c-1", "tool": "search_web", "arguments": {}}
    call.pop(field, None)
    text = json.dumps(call)[:-1] + f', "{field}": {value}}}'
    if form == "guard":
        answer = api.raw("/guard", ('{"session": "s-1", "calls": [' + text + "]}").encode())
        path = f"calls[0].{field}"
    else:
        answer = api.raw("/events", ('{"type": "call", ' + text[1:]).encode())
        path = field
    problem = answer.json()
    if (form, field) == ("single", "session"):
        code = "invalid_characters"
    assert (answer.status_code, problem["code"]) == (422, code)
    assert problem["path"].startswith(path)


OPERATIONS = [
    (path, method.upper())
    for path, operations in ninja_api.get_openapi_schema()["paths"].items()
    for method, operation in operations.items()
    if "requestBody" in operation
]
OTLP = "/api/v1/otlp/"
"""Routes whose errors have the form of their protocol."""
WHOLE_BODIES = [value for value, _ in VALUES.values()] + [
    b"", b"{", b"[]", b"null", b"7", b'"text"', b'{"a": [{}]}', b'{"events": {}}', b'{"events": [7, null, [], {}]}',
    '{"a": 1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b'{"values": {"mode": [{}]}}', b'{"mode": [{}], "max_repeats": {}}',
    b'{"text": "\\u0000"}', b'{"note": "\\u0000"}', b'{"label": {}}', b'{"until": "0001-01-01T00:00:00Z"}',
    b'{"hours": 1e308}', b'{"max_repeats": 1e308}', b'{"ids": ["\\u0000", "x"], "action": "done"}', b'{"is_staff": true}',
]  # fmt: skip


# The parser is the same for all: every route gets half of the bodies, and every second route the same half.
@pytest.mark.promise("REL-15")
@pytest.mark.parametrize(
    ("path", "method", "bodies"),
    [(*operation, WHOLE_BODIES[number % 2 :: 2]) for number, operation in enumerate(OPERATIONS)]
    + [pytest.param(*operation, WHOLE_BODIES, marks=pytest.mark.long) for operation in OPERATIONS],
    ids=lambda value: len(value) if isinstance(value, list) else None,
)
def test_no_body_makes_any_route_fail_or_answer_in_anything_but_json(api, path, method, bodies):
    api.loop("s-1")
    incident = api.get("/incidents").json()["items"][0]["id"]
    filled = (
        path.removeprefix("/api/v1").replace("{session}", "s-1").replace("{incident_id}", incident)
        .replace("{backend}", "openai").replace("{model}", "gpt-5").replace("{pattern}", "search_*")
        .replace("{rung}", "block")
    )  # fmt: skip
    for body in bodies:
        answer = api.raw(filled, body, method=method)
        assert answer.status_code < 500, (body[:60], answer.text)
        if answer.status_code >= 400 and path.startswith(OTLP):
            assert answer.headers["content-type"] == "application/json"
            assert answer.json()["message"]
        elif answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"]
            assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.promise("SEC-31")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "not_json"),
        (b'{"values": {"max_repeats": 1e400}}', 422, "number_range"),
        (b"[" * 1100 + b"]" * 1100, 422, "too_deep"),
        (b'{"values": "' + b"x" * 2 * 1024 * 1024 + b'"}', 413, "too_large"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_every_route_with_a_body_responds_with_the_code_of_the_parser(api, body, status, code):
    for path, method in OPERATIONS:
        if path in ("/api/v1/events", "/api/v1/guard", "/api/v1/hooks/{host}", "/api/v1/imports"):
            continue  # the table above, the tests of hooks, and files of any format
        if path.startswith(OTLP):
            continue  # the test before this one
        answer = api.raw(re.sub(r"{\w+}", "block", path.removeprefix("/api/v1")), body, method=method)
        assert (answer.status_code, answer.json()["code"]) == (status, code), path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
event_like = st.fixed_dictionaries(
    {},
    optional={
        name: json_values | st.sampled_from(["call", "result", "message", "end", "s-1", "c-1", "seq-1"])
        for name in ("type", "session", "call_id", "id", "tool", "arguments", "content", "is_error", "usage", "occurred_at",
                     "outcome", "round", "run", "model")
    },
)  # fmt: skip


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(event_like, min_size=1, max_size=3))
def test_events_of_any_shape_are_stored_or_rejected_one_by_one(api, events):
    answer = api.raw("/events", json.dumps({"events": events}).encode())
    document = answer.json()
    if answer.status_code == 400:
        assert document["code"] == "not_json"  # an infinite number is no JSON at all
        return
    assert answer.status_code == 202, document
    assert document["accepted"] + document["duplicate"] + len(document["rejected"]) == len(events)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=event_like, result=event_like)
def test_guard_requests_of_any_shape_are_evaluated_or_rejected(api, call, result):
    body = {"session": "s-1", "calls": [{"tool": "t", **call}], "results": [{"call_id": "c", **result}]}
    answer = api.raw("/guard", json.dumps(body).encode())
    assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.promise("SEC-34")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(
    st.sampled_from(["max_repeats", "mode", "preset", "enabled", "ttl_seconds", "similar_ratio", "graduated_rungs", "nope"]), json_values,
    max_size=4,
))  # fmt: skip
def test_settings_of_any_shape_are_accepted_or_rejected(api, values):
    for method, path in (("PUT", "/overrides/openai"), ("PUT", "/tool-rules/x")):
        body = {"values": values}
        answer = api.raw(path, json.dumps(body).encode(), method=method)
        assert answer.status_code in (200, 400, 422), answer.text
