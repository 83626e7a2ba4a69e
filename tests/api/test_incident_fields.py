"""A field of an incident is described once: documents, schema, files, filters and orders have it."""

import csv
import io
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import pytest

from detection.api.app import api as ninja_api
from detection.api.schemas.common import schema_of
from detection.models import Incident
from detection.selectors import row_fields
from detection.selectors.filters import list_query
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.lists import INCIDENTS
from detection.selectors.row_fields import Shown
from tests.support.alerts import make_incident
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db


@dataclass(frozen=True, slots=True)
class LongerRow(IncidentRow):
    """An incident with columns that its row does not have, each added in one line."""

    resolver: Annotated[
        str, Shown("Who.", name="by", column="session_name", filter="by", is_optional=True, sort="by")
    ]
    price: Annotated[Decimal, Shown("What it cost.", column="cost_usd", filter="price", help="Price")]
    laps: Annotated[int, Shown("Laps.", column="calls_in_loop", filter="laps")]
    since: Annotated[datetime, Shown("Since when.", column="opened_at", filter="since")]
    is_short: Annotated[bool, Shown("Whether it is short.", column="is_demo", filter="short")]
    choice: Annotated[str, Shown("One of two.", column="status", choices=("open", "ended"))]
    hidden: Annotated[str, Shown(column="agent")]


def test_an_added_field_is_in_documents_files_schema_filters_and_orders():
    project = make_project()
    values = {"session_name": "s-1", "calls_in_loop": 7, "cost_usd": 2, "status": "open"}
    row = make_incident(project, kind="cycle", **values)
    make_incident(
        project, kind="repeat", loop_id="other", **values | {"session_name": "", "calls_in_loop": 3}
    )
    columns = row_fields.columns_of(LongerRow).values()
    read = LongerRow(*Incident.objects.filter(pk=row.pk).values_list(*columns)[0])
    document = row_fields.document_of(read)
    added = {name: document[name] for name in ("by", "price", "laps", "since", "is_short", "choice")}
    assert added == {
        "by": "s-1", "price": 2.0, "laps": 7, "since": row.opened_at.isoformat(), "is_short": False, "choice": "open",
    }  # fmt: skip
    assert "hidden" not in document
    assert row_fields.document_of(replace(read, resolver=""))["by"] is None
    described = schema_of(LongerRow).model_json_schema()["properties"]
    assert [*described] == [*document]
    assert described["by"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert (described["choice"]["enum"], described["since"]["format"]) == (["open", "ended"], "date-time")
    fields = row_fields.filters_of(LongerRow)
    assert [(field.name, field.type, field.help) for field in fields[-5:]] == [
        ("by", "text", "Who"), ("price", "number", "Price"), ("laps", "number", "Laps"), ("since", "time", "Since when"),
        ("short", "choice", "Whether it is short"),
    ]  # fmt: skip
    longer = replace(INCIDENTS, fields=fields, sorts=row_fields.sorts_of(LongerRow, first="by"))
    assert longer.sorts[0].name == "by"
    for words, found in (("by:s-1", 1), ("laps:<5", 1), ("price:>=2 short:no", 2), ("since:<2020-01-01", 0)):
        query = list_query(longer, words)
        assert Incident.objects.filter(query.condition(), project=project).count() == found, words


def test_the_api_and_files_have_the_described_fields_in_order(api, project):
    api.loop()
    names = [field.name for field in row_fields.shown_fields(IncidentRow)]
    (incident,) = api.get("/incidents").json()["items"]
    assert [*incident] == [*names, "links"]
    file = api.get("/incidents/export", format="csv").text
    assert next(csv.reader(io.StringIO(file.lstrip("\ufeff")))) == names
    described = ninja_api.get_openapi_schema()["components"]["schemas"]["IncidentSchema"]["properties"]
    assert [*described] == [*names, "links"]
    assert {field.name for field in row_fields.filters_of(IncidentRow)} <= {
        one.name for one in INCIDENTS.fields
    }
