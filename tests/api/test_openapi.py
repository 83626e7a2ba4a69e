"""The OpenAPI document matches the API, and the docs page shows it under the strict policy."""

import functools
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.db import connection
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from detection.api.app import api as ninja_api
from tests.support.projects import make_key, make_project
from tests.support.shared_rows import shared_rows

from .conftest import Api, speaking

DESCRIPTION = ninja_api.get_openapi_schema()
SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"
VERBS = {
    "Get", "List", "Create", "Update", "Delete", "Remove", "Add", "Send", "Resend", "Export", "Preview", "Run",
    "Evaluate", "Decide", "Acknowledge", "Resolve", "Reopen", "Snooze", "Undo", "Revoke", "Label", "Comment", "Stop", "Resume", "End",
    "Contain", "Lift", "Test", "Cancel", "Assign", "Search", "Put", "Close", "Confirm", "Accept", "Reject",
}  # fmt: skip


@functools.cache
def schema():
    return schemathesis.openapi.from_dict(DESCRIPTION)


@pytest.fixture(scope="module")
def world(django_db_setup, django_db_blocker):
    """A project with a key and a looping session, made once: each test's own changes are undone."""
    with shared_rows(django_db_blocker), speaking() as client:
        project = make_project("support")
        key = make_key(project)
        Api(client, key).loop("0")
        yield project, key


@pytest.fixture
def project(world, db):
    return world[0]


@pytest.fixture
def key(world, db):
    return world[1]


def operations():
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_the_openapi_document_changes_only_on_purpose():
    """After a wanted change: `python3 manage.py openapi docs/openapi.json`."""
    assert json.loads(SNAPSHOT.read_text()) == json.loads(json.dumps(DESCRIPTION))


def test_every_operation_starts_with_a_verb_and_is_described_with_all_its_parameters():
    for name, operation in operations():
        assert operation["summary"].split()[0] in VERBS, name
        assert operation["description"].endswith("."), name
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), f"{name}: {parameter['name']}"


def test_every_schema_and_every_field_is_described():
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        assert name.endswith(("Schema", "Schema_")), name
        assert schema.get("description"), name
        for field, described in schema.get("properties", {}).items():
            assert described.get("description", "").endswith("."), f"{name}.{field}"


def test_the_description_is_openapi_3_1_and_every_reference_leads_somewhere(wsgi_client, db):
    described = wsgi_client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    for name in re.findall(r"#/components/schemas/([^']+)'", str(described)):
        assert name in described["components"]["schemas"]
    identifiers = [
        operation["operationId"]
        for operations in described["paths"].values()
        for operation in operations.values()
    ]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize("kind", ["application/json", "application/x-protobuf"])
def test_an_error_of_an_exporter_has_the_described_form(api, kind):
    answer = api.request("POST", "/otlp/v1/logs", content=b"\xff", headers={"Content-Type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (400, kind)
    reference = DESCRIPTION["paths"]["/api/v1/otlp/v1/logs"]["post"]["responses"]["400"]["$ref"]
    described = DESCRIPTION["components"]["responses"][reference.rpartition("/")[2]]["content"]
    assert kind in described
    if kind == "application/json":
        assert {*answer.json()} == {*described[kind]["schema"]["properties"]}


EVENT = DESCRIPTION["components"]["schemas"]["EventSchema"]["properties"]
USAGE = DESCRIPTION["components"]["schemas"]["UsageSchema"]["properties"]
TYPE_WITH = {"outcome": "end", "role": "message", "content_digest": "message", "content_length": "message"}
"""Types of events that have a field; a call has all others."""


def described(properties, constraint):
    """The described values of a constraint by field, of optional fields too."""
    of_fields = {name: field.get("anyOf", [field])[0] for name, field in properties.items()}
    return {name: field[constraint] for name, field in of_fields.items() if constraint in field}


def sent(api, **fields):
    """The code with which an event is rejected and the field at fault; None if it is accepted."""
    needed: dict[str, Any] = {
        "call": {"tool": "t"},
        "usage": {"usage": {"input_tokens": 1}},
        "heartbeat": {"call_id": "c"},
    }
    kind = fields.pop("type", "call")
    response = api.post("/events", {"type": kind, "session": "s", **needed.get(kind, {}), **fields})
    return None if response.status_code < 300 else (response.json()["code"], response.json()["path"])


@pytest.mark.parametrize(("name", "longest"), sorted(described(EVENT, "maxLength").items()))
def test_a_name_may_have_the_described_length(api, name, longest):
    kind = TYPE_WITH.get(name, "call")
    assert sent(api, type=kind, **{name: "x" * longest}) is None
    assert sent(api, type=kind, **{name: "x" * (longest + 1)}) == ("too_long", name)
    assert sent(api, type=kind, **{name: 5}) == ("invalid_type", name)


@pytest.mark.parametrize(("name", "choices"), sorted(described(EVENT, "enum").items()))
def test_a_choice_has_the_described_values(api, name, choices):
    kind = {} if name == "type" else {"type": TYPE_WITH[name]}
    assert [sent(api, **kind, **{name: choice}) for choice in choices] == [None] * len(choices)
    assert sent(api, **kind, **{name: choices[0].upper()}) == ("invalid_value", name)


@pytest.mark.parametrize(("name", "largest"), sorted(described(USAGE, "maximum").items()))
def test_a_number_of_usage_may_have_the_described_size(api, name, largest):
    for value, outcome in ((largest, None), (largest + 1, ("out_of_range", f"usage.{name}"))):
        assert sent(api, usage={name: value}) == outcome
        assert sent(api, type="usage", usage={name: value}) == outcome


def test_the_length_of_a_content_may_have_the_described_size(api):
    largest = described(EVENT, "maximum")["content_length"]
    assert sent(api, type="message", content="x", content_length=largest) is None
    beyond = sent(api, type="message", content="x", content_length=largest + 1)
    assert beyond == ("out_of_range", "content_length")


def test_a_field_is_marked_as_unknown_unless_it_is_described(api):
    call = {
        "type": "call",
        "session": "s",
        "tool": "t",
        **dict.fromkeys(EVENT.keys() - {"type", "session", "tool"}),
    }
    assert api.post("/events", {"events": [call, {**call, "described": None}]}).json()["altered"] == [
        {"index": 1, "marks": ["unknown_field"], "unknown_fields": ["described"]}
    ]
    of_guard = DESCRIPTION["components"]["schemas"]["GuardRequestSchema"]["properties"]
    body = {**dict.fromkeys(of_guard), "session": "s", "calls": [{"tool": "t"}]}
    plain = api.post("/guard", body)
    assert (plain.status_code, plain.json().get("altered")) == (200, None)
    assert api.post("/guard", {**body, "described": None}).json()["altered"] == [
        {"path": "", "marks": ["unknown_field"], "unknown_fields": ["described"]}
    ]


@pytest.mark.parametrize(("name", "longest"), sorted(described(
    DESCRIPTION["components"]["schemas"]["GuardRequestSchema"]["properties"], "maxLength"
).items()))  # fmt: skip
def test_a_name_of_a_guard_request_may_have_the_described_length(api, name, longest):
    def answered(length):
        return api.post("/guard", {"session": "s", "calls": [{"tool": "t"}], name: "x" * length})

    assert answered(longest).status_code == 200
    refused = answered(longest + 1)
    assert (refused.status_code, refused.json()["code"], refused.json()["path"]) == (422, "too_long", name)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_both_are_there_without_a_key(wsgi_client, db, path):
    assert wsgi_client.get(path).status_code == 200


def test_the_docs_page_shows_every_operation_and_loads_nothing_from_elsewhere(wsgi_client, db):
    page = wsgi_client.get("/docs").text
    for path in DESCRIPTION["paths"]:
        assert path in page
    assert "<script" not in page
    assert "style=" not in page
    assert not re.search(r'(?:src|href)="https?://', page)
    assert "`" not in page
    assert 'href="/">Back to the console</a>' in page
    assert "&quot;session&quot;: &quot;ticket-42&quot;" in page
    assert "<code>verdicts[].approval.wait_url</code>" in page
    assert 'id="guardcalls"' in page  # Connect leads to it


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [("EventBatchSchema", "POST", "/events"), ("GuardRequestSchema", "POST", "/guard"),
     ("OverrideRequestSchema", "PUT", "/agent-overrides/support")],
)  # fmt: skip
def test_the_examples_of_bodies_are_accepted(name, method, path, api):
    (example,) = DESCRIPTION["components"]["schemas"][name]["examples"]
    answer = api.request(method, path, json=example)
    assert answer.is_success, answer.text
    assert not answer.json().get("rejected")


@pytest.mark.parametrize(
    ("path", "method"),
    [(path, method) for path, operations in DESCRIPTION["paths"].items() for method in operations],
)
@pytest.mark.parametrize(
    ("mode", "examples"),
    [
        (GenerationMode.POSITIVE, 2),
        pytest.param(GenerationMode.POSITIVE, 100, marks=pytest.mark.long),
        pytest.param(GenerationMode.NEGATIVE, 100, marks=pytest.mark.long),
    ],
)
def test_answers_are_those_that_the_description_promises(api, path, method, mode, examples):
    connection.cursor().execute(
        "SET LOCAL idle_in_transaction_session_timeout = 0"
    )  # many cases take long to generate
    operation = schema()[path][method.upper()]
    checks = (
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    )

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        request = case.as_transport_kwargs(base_url="http://127.0.0.1")
        answer = api.request(
            request["method"], request["url"], params=request.get("params"), json=request.get("json"),
            content=request.get("data"), headers={k: v for k, v in (request.get("headers") or {}).items() if k.lower() == "content-type"},
        )  # fmt: skip
        answer.elapsed = timedelta(0)
        case.validate_response(schemathesis.Response.from_httpx(answer, verify=False), checks=checks)

    ask()
