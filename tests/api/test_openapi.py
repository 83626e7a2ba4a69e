"""The OpenAPI document matches the API, and the docs page shows it under the strict policy."""

import functools
import json
import re
from datetime import timedelta
from pathlib import Path

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

from detection.api import event_parsing, guard_parsing
from detection.api.app import api as ninja_api
from detection.api.schemas.agents import EventSchema, GuardRequestSchema
from tests.support.projects import make_key, make_project
from tests.support.shared_rows import shared_rows

from .conftest import Api, speaking

DESCRIPTION = ninja_api.get_openapi_schema()
SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"
VERBS = {
    "Get", "List", "Create", "Update", "Delete", "Remove", "Add", "Send", "Resend", "Export", "Preview", "Run",
    "Evaluate", "Decide", "Acknowledge", "Resolve", "Reopen", "Snooze", "Undo", "Revoke", "Label", "Comment", "Stop", "Resume", "End",
    "Test", "Cancel", "Assign", "Mute", "Unmute", "Accept", "Reject",
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


def test_the_described_events_and_guard_bodies_are_those_that_are_read():
    assert set(EventSchema.model_fields) == event_parsing._EVENT_FIELDS
    assert set(GuardRequestSchema.model_fields) == guard_parsing._GUARD_FIELDS
    described = DESCRIPTION["components"]["schemas"]["EventSchema"]["properties"]
    for name, length in event_parsing.NAME_LENGTHS.items():
        options = described[name].get("anyOf", [described[name]])
        assert options[0]["maxLength"] == length
    assert set(described["type"]["enum"]) == set(event_parsing.EVENT_TYPES)


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
