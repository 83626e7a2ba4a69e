"""The description tells the truth, and the docs page shows it under the strict policy."""

import re
from datetime import timedelta

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from detection.api import event_parsing, schemas
from detection.api.app import api as ninja_api

DESCRIPTION = ninja_api.get_openapi_schema()


def test_the_description_is_openapi_3_1_and_every_reference_leads_somewhere(door, db):
    described = door.get("/openapi.json").json()
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
    assert set(schemas.EventIn.model_fields) == event_parsing._EVENT_FIELDS
    assert set(schemas.GuardIn.model_fields) == event_parsing._GUARD_FIELDS
    described = DESCRIPTION["components"]["schemas"]["EventIn"]["properties"]
    for name, length in event_parsing.NAME_LENGTHS.items():
        options = described[name].get("anyOf", [described[name]])
        assert options[0]["maxLength"] == length
    assert set(described["type"]["enum"]) == set(event_parsing.EVENT_TYPES)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_both_are_there_without_a_key(door, db, path):
    assert door.get(path).status_code == 200


def test_the_docs_page_shows_every_operation_and_loads_nothing_from_elsewhere(door, db):
    page = door.get("/docs").text
    for path in DESCRIPTION["paths"]:
        assert path in page
    assert "<script" not in page
    assert "style=" not in page
    assert not re.search(r'(?:src|href)="https?://', page)


@pytest.mark.parametrize(
    ("path", "method"),
    [(path, method) for path, operations in DESCRIPTION["paths"].items() for method in operations],
)
def test_answers_to_whatever_the_description_allows_are_those_it_promises(api, path, method):
    api.loop("0")
    operation = schemathesis.openapi.from_dict(DESCRIPTION)[path][method.upper()]
    checks = (
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    )

    @settings(
        max_examples=6,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy())
    def ask(case):
        request = case.as_transport_kwargs(base_url="http://127.0.0.1")
        answer = api.request(
            request["method"], request["url"], params=request.get("params"), json=request.get("json"),
            content=request.get("data"), headers={k: v for k, v in (request.get("headers") or {}).items() if k.lower() == "content-type"},
        )  # fmt: skip
        answer.elapsed = timedelta(0)
        case.validate_response(schemathesis.Response.from_httpx(answer, verify=False), checks=checks)

    ask()
