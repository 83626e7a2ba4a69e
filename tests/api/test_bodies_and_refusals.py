"""Sizes, encodings, content types, unknown paths and methods: always a problem document, never a page."""

import gzip
import itertools
import json
import re

import httpx
import pytest
from django.db import OperationalError

from detection.api.request_bodies import MAX_BODY_BYTES

CALL = {"type": "call", "session": "s-1", "call_id": "c-1", "tool": "search_web"}


def refusal(answer, status, code):
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code), answer.text
    assert re.fullmatch(r"req_[0-9a-f]{24}", problem["request_id"])
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


@pytest.mark.parametrize("path", ["/events", "/guard"])
def test_a_body_over_the_limit_is_rejected_before_it_is_read(api, path):
    refusal(api.raw(path, b" " * (MAX_BODY_BYTES + 1)), 413, "too_large")
    # The announced length alone is enough; nothing of the body is asked for.
    refusal(api.raw(path, b"{}", **{"Content-Length": str(5 * 2**30)}), 413, "too_large")


@pytest.mark.promise("REL-14")
def test_an_endless_body_without_a_length_is_counted_while_it_is_read(api):
    refusal(api.raw("/events", itertools.repeat(b"[" * 65536)), 413, "too_large")
    assert api.client._transport.body.taken <= MAX_BODY_BYTES + 1


def test_a_body_without_a_length_is_taken(api):
    pieces = [json.dumps(CALL).encode()[:9], json.dumps(CALL).encode()[9:]]
    assert api.raw("/events", iter(pieces)).json()["accepted"] == 1


def test_an_upload_without_a_key_is_not_read(wsgi_client):
    refusal(wsgi_client.post("/events", content=itertools.repeat(b"x" * 65536)), 401, "missing_key")
    assert wsgi_client._transport.body.taken == 0


@pytest.mark.promise("REL-14")
def test_a_packed_body_is_unpacked_within_bounds(api):
    packed = gzip.compress(json.dumps(CALL).encode())
    assert api.raw("/events", packed, **{"Content-Encoding": "gzip"}).json()["accepted"] == 1
    bomb = gzip.compress(b" " * (50 * 2**20))
    assert len(bomb) < 2**20
    refusal(api.raw("/events", bomb, **{"Content-Encoding": "gzip"}), 413, "too_large")
    refusal(api.raw("/events", packed[:-4], **{"Content-Encoding": "gzip"}), 400, "broken_encoding")
    refusal(api.raw("/events", packed + packed, **{"Content-Encoding": "gzip"}), 400, "broken_encoding")
    refusal(api.raw("/events", b"not gzip", **{"Content-Encoding": "gzip"}), 400, "broken_encoding")
    refusal(api.raw("/events", packed, **{"Content-Encoding": "br"}), 415, "unsupported_encoding")


@pytest.mark.promise("SEC-08")
@pytest.mark.parametrize("path", ["/events", "/guard", "/sessions/s-1/commands", "/loops/bulk"])
@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
    ],
)
def test_other_content_types_are_rejected(api, path, kind):
    refusal(api.raw(path, json.dumps(CALL), content_type=kind), 415, "unsupported_media_type")


def test_charsets_other_than_utf_8_are_rejected(api):
    assert (
        api.raw("/events", json.dumps(CALL), content_type="application/json; charset=UTF-8").status_code
        == 202
    )
    refusal(
        api.raw("/events", json.dumps(CALL), content_type="application/json; charset=latin-1"),
        415,
        "unsupported_charset",
    )


def test_unknown_paths_methods_and_hosts_get_problems_too(api, wsgi_client):
    for path in ("/nothing", "/", "/events/", "/sessions//"):
        refusal(api.get(path), 404, "not_found")
    refusal(wsgi_client.get("http://127.0.0.1/api/v2/events"), 404, "not_found")
    problem = api.request("DELETE", "/guard")
    refusal(problem, 405, "method_not_allowed")
    assert problem.headers["allow"] == "POST"
    host = refusal(
        api.request("GET", "/sessions", headers={"Host": "agents.example:8300"}), 400, "invalid_host"
    )
    assert (
        host["detail"]
        == "agents.example is not a host of this installation. Add it to LOOPGUARD_ALLOWED_HOSTS."
    )


@pytest.mark.parametrize("path", ["/guard", "/gateway/openai/chat/completions"])
def test_a_program_that_has_missed_the_address_gets_it(client, settings, path):
    problem = refusal(client.post(path, {}, content_type="application/json"), 404, "not_found")
    assert (
        f"{settings.PUBLIC_URL}/api/v1, and the gateway below {settings.LIVE_URL}/gateway."
        in problem["detail"]
    )
    assert client.get(path).headers["content-type"].startswith("text/html")


def test_a_body_that_is_not_json_is_named_as_such(api):
    problem = refusal(api.raw("/guard", b'{"session": "s-1", '), 400, "not_json")
    assert problem["detail"].startswith("Not valid JSON: expecting property name")
    assert (
        refusal(api.raw("/guard", b""), 400, "not_json")["detail"]
        == "Not valid JSON: empty at line 1, column 1."
    )


def test_a_field_that_does_not_exist_is_named(api):
    call = {"tool": "search_web", "args": {"q": "x"}, "tags": ["a"]}
    answer = api.post("/guard", {"session": "s-1", "calls": [call], "sesion": 1}).json()
    assert answer["altered"] == [
        {"path": "", "marks": ["unknown_field"], "unknown_fields": ["sesion"]},
        {"path": "calls[0]", "marks": ["unknown_field"], "unknown_fields": ["args", "tags"]},
    ]
    events = [CALL, CALL | {"call_id": "c-2", "args": {}}, {"type": "nothing"}]
    altered = api.post("/events", {"events": events}).json()["altered"]
    assert altered == [{"index": 1, "marks": ["unknown_field"], "unknown_fields": ["args"]}]


def test_query_parameters_are_checked(api):
    assert refusal(api.get("/sessions", limit=0), 422, "invalid")["path"] == "limit"
    assert refusal(api.get("/sessions", satte="running"), 422, "unknown_parameter")["path"] == "satte"
    for path in (
        "/sessions",
        "/session-counts",
        "/incidents",
        "/statistics",
        "/alerts/notifications",
        "/audit",
    ):
        refused = refusal(api.get(path, q="no_field:1"), 422, "invalid_filter")
        assert refused["path"] == "q"
        assert refused["detail"].startswith("`no_field` is not a field of ")
        refusal(api.get(path, q="a\x00b"), 422, "invalid_filter")
    assert refusal(api.get("/incidents", sort="nonsense"), 422, "invalid_value")["path"] == "sort"
    for cursor in ("nonsense", "AAAA", "MDAwMS0wMS0wMVQwMDowMDowMHwx", "é"):
        assert refusal(api.get("/sessions", cursor=cursor), 422, "invalid_cursor")["path"] == "cursor"
        refusal(api.get("/incidents", cursor=cursor), 422, "invalid_cursor")


def test_names_in_paths_that_nothing_can_have_are_not_found(api):
    for path in (
        "/sessions/a%00b",
        "/sessions/a%00b/calls",
        "/incidents/a%00b",
        "/overrides/a%00b/c",
        "/tool-rules/a%00b",
        "/sessions/%ff",
    ):
        refusal(api.get(path), 404, "not_found")
    refusal(api.post("/sessions/a%00b/stop"), 404, "not_found")
    refusal(api.put("/overrides/a%00b", {"values": {}}), 422, "invalid_value")
    refusal(api.put("/agent-overrides/" + "x" * 129, {"values": {}}), 422, "invalid_value")
    refusal(api.put("/tool-rules/" + "x" * 129, {}), 422, "invalid_value")


def test_a_request_id_of_the_caller_is_taken_over_when_it_is_harmless(api):
    assert (
        api.request("GET", "/sessions", headers={"X-Request-ID": "trace-12345678"}).headers["x-request-id"]
        == "trace-12345678"
    )
    given = api.request("GET", "/sessions", headers={"X-Request-ID": "<script>alert(1)</script>"})
    assert given.headers["x-request-id"].startswith("req_")


@pytest.mark.promise("REL-08")
def test_with_the_database_away_the_answer_is_503_with_a_time_to_come_back(api, key):
    from django.db import connection

    api.get("/sessions")  # the key is recognised without a query now

    def gone(execute, *arguments):
        raise OperationalError("server closed the connection unexpectedly")

    with connection.execute_wrapper(gone):
        answers = [api.get("/sessions"), api.raw("/events", json.dumps(CALL)), api.call()]
    for answer in answers:
        refusal(answer, 503, "unavailable")
        assert 1 <= int(answer.headers["retry-after"]) <= 3


@pytest.mark.promise("SEC-26")
def test_an_unexpected_error_is_a_500_without_details(api):
    from django.db import connection

    def broken(execute, *arguments):
        raise RuntimeError("secret detail")

    api.get("/sessions")
    with connection.execute_wrapper(broken):
        answer = api.get("/sessions")
    assert "secret" not in refusal(answer, 500, "internal_error")["detail"]


@pytest.mark.promise("SEC-09")
def test_every_answer_carries_the_content_security_policy(api, wsgi_client):
    for answer in (api.get("/sessions"), wsgi_client.get("/nothing"), wsgi_client.get("/docs")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_stream_that_breaks_off_is_a_400(api):
    short = httpx.Request(
        "POST",
        "http://127.0.0.1/api/v1/events",
        content=b'{"type"',
        headers={**api.headers, "Content-Type": "application/json"},
    )
    short.headers["Content-Length"] = "500"
    refusal(api.client.send(short), 400, "incomplete_body")
