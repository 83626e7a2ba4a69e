"""A field of a listed thing is described once: documents, schema, files, filters and orders have it."""

import csv
import io
import json
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from django.utils import timezone
from ninja import Field, Schema

from detection.api.app import api as ninja_api
from detection.api.schemas.common import with_fields_of
from detection.filtering.time_ranges import TimeRange
from detection.models import (
    AlertDestination,
    Approval,
    AuditEntry,
    Incident,
    Notification,
    Session,
)
from detection.selectors import row_fields
from detection.selectors.filters import list_query
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.insights import RATE_COLUMNS
from detection.selectors.lists import LISTS
from detection.selectors.loops import LoopRow
from detection.selectors.record_rows import ApprovalRow, AuditRow, NotificationRow
from detection.selectors.row_fields import Shown
from detection.selectors.session_rows import SessionRow
from detection.selectors.statistics import Numbers
from detection.web import exports
from detection.web.exports import EXPORTED_LISTS
from tests.support.alerts import make_incident
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db
KINDS = {
    "sessions": (SessionRow, "SessionSchema", ["links"]),
    "incidents": (IncidentRow, "IncidentSchema", ["links"]),
    "loops": (LoopRow, "LoopSchema", ["links"]),
    "approvals": (ApprovalRow, "ApprovalSchema", ["rendered"]),
    "notifications": (NotificationRow, "NotificationSchema", []),
    "audit": (AuditRow, "AuditEntrySchema", []),
    "statistics": (Numbers, "StatisticsNumbersSchema", []),
}
"""Of each list: what describes its rows, the schema of the API, and what only that has."""
STORED: dict[str, Any] = {
    "sessions": Session, "incidents": Incident, "approvals": Approval, "notifications": Notification, "audit": AuditEntry,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lap:
    """A lap."""

    number: Annotated[int, Shown("Which one.")]


def first_lap(row) -> Lap | None:
    return Lap(row.calls_in_loop) if row.calls_in_loop else None


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
    choice: Annotated[str, Shown("One of two.", column="status", choices=("open", "ended"), filter="choice")]
    lap: Annotated[int, Shown("The first lap.", column="calls_in_loop", show=first_lap)]
    hidden: Annotated[str, Shown(column="agent")]


def described(row):
    """The schema of the documents of a kind of rows, as OpenAPI shows it."""

    @with_fields_of(row)
    class OwnSchema(Schema):
        """What is shown."""

        links: dict[str, str] = Field(description="Links.")

    return OwnSchema.model_json_schema()


def test_an_added_field_of_each_type_is_in_documents_files_schema_filters_and_orders():
    project = make_project()
    values = {"session_name": "s-1", "calls_in_loop": 7, "cost_usd": 2, "status": "open"}
    row = make_incident(project, kind="cycle", **values)
    make_incident(
        project, kind="repeat", calls_digest="other", **values | {"session_name": "", "calls_in_loop": 3}
    )
    columns = row_fields.columns_of(LongerRow).values()
    read = LongerRow(*Incident.objects.filter(pk=row.pk).values_list(*columns)[0])
    document = row_fields.document_of(read)
    row.refresh_from_db()
    assert row_fields.document_of(row, LongerRow) == document
    added = {name: document[name] for name in ("by", "price", "laps", "since", "is_short", "choice", "lap")}
    assert added == {
        "by": "s-1", "price": 2.0, "laps": 7, "since": row.opened_at.isoformat(), "is_short": False, "choice": "open",
        "lap": {"number": 7},
    }  # fmt: skip
    assert "hidden" not in document
    empty = row_fields.document_of(replace(read, resolver="", calls_in_loop=0))
    assert (empty["by"], empty["lap"]) == (None, None)
    schema = described(LongerRow)
    properties = schema["properties"]
    assert [*properties] == [*document, "links"]
    assert properties["by"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert properties["lap"]["anyOf"] == [{"$ref": "#/$defs/LapSchema"}, {"type": "null"}]
    assert schema["$defs"]["LapSchema"]["properties"]["number"]["description"] == "Which one."
    assert (properties["choice"]["enum"], properties["since"]["format"]) == (["open", "ended"], "date-time")
    filters = row_fields.filters_of(LongerRow)
    assert [(field.name, field.type, field.help) for field in filters[-6:]] == [
        ("by", "text", "Who"), ("price", "number", "Price"), ("laps", "number", "Laps"), ("since", "time", "Since when"),
        ("short", "choice", "Whether it is short"), ("choice", "choice", "One of two"),
    ]  # fmt: skip
    longer = replace(LISTS["incidents"], fields=filters, sorts=row_fields.sorts_of(LongerRow, first="by"))
    assert longer.sorts[0].name == "by"
    for words, found in (
        ("by:s-1", 1), ("laps:<5", 1), ("price:>=2 short:no", 2), ("since:<2020-01-01", 0), ("choice:open", 2),
        ("choice:ended", 0),
    ):  # fmt: skip
        query = list_query(longer, words)
        assert Incident.objects.filter(query.condition(), project=project).count() == found, words


def with_a_field(row):
    """Return what describes rows with a field more, which shows the row's id as a text."""

    def shown(row) -> str | None:
        return f"row {row.id}" if getattr(row, "id", None) else None

    column = Shown("What was added.", name="added", column="id", show=shown, filter="added", sort="added")
    own = {"__annotations__": {"more": Annotated[str, column]}, "__module__": __name__}
    longer = type("Longer", (row,), own)
    if not is_dataclass(row):
        return longer
    return dataclass(frozen=row is not Numbers, kw_only=True)(longer)


@pytest.fixture
def rows(api, project):
    """A project with a row of each list."""
    api.loop()
    session = Session.objects.get(project=project)
    now = timezone.now()
    Approval.objects.create(
        project=project, session=session, incident=session.incidents.first(), seq=1, call_id="c", call_key="k", tool="t",
        calls_digest="l", kind="repeat", count=3, limit=3, summary="Repeated.", deadline=now + timedelta(hours=1),
    )  # fmt: skip
    destination = AlertDestination.objects.create(project=project, name="hook", kind="webhook", address="a")
    Notification.objects.create(
        project=project, destination=destination, route_name="all", title="=1", due_at=now
    )
    AuditEntry.objects.create(
        project=project, actor="ana", action="session.stop", subject="s", after={"a": 1}
    )
    return project


def queries():
    now = timezone.now()
    return {
        name: list_query(spec, range=TimeRange("", now - timedelta(days=1), now + timedelta(days=1)))
        if name == "statistics"
        else list_query(spec)
        for name, spec in LISTS.items()
    }


def files(project, name, file_format, query):
    more: dict[str, Any] = {"by": "tool"} if name == "statistics" else {}
    answer: Any = exports.list_file(project.pk, project.slug, query, file_format, **more)
    return b"".join(answer.streaming_content).decode()


@pytest.mark.parametrize("name", KINDS)
def test_a_field_added_to_what_describes_the_rows_of_a_list_is_everywhere(name, rows, monkeypatch):
    row, _, _ = KINDS[name]
    longer = with_a_field(row)
    assert described(longer)["properties"]["added"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    known = EXPORTED_LISTS[name]

    def document(found, project):
        if is_dataclass(row):
            found = found.numbers if name == "statistics" else found
            found = longer(**{field.name: getattr(found, field.name) for field in fields(row)}, more="")
        return row_fields.document_of(found, longer)

    columns = [field.name for field in row_fields.shown_fields(longer)]
    monkeypatch.setitem(EXPORTED_LISTS, name, replace(known, columns=columns, document=document))
    head, first, *_ = csv.reader(io.StringIO(files(rows, name, "csv", queries()[name])))
    assert head == columns
    assert head[-1] == "added"
    if name not in STORED:
        return
    stored = STORED[name].objects.filter(project=rows)
    newest = stored.latest("id")
    assert first[-1].startswith("row ")
    spec = replace(
        LISTS[name], fields=row_fields.filters_of(longer), sorts=row_fields.sorts_of(longer, first="added")
    )
    assert spec.sorts[0].name == spec.fields[-1].name == "added"
    query = list_query(spec, f"added:{newest.pk}")
    assert [one.pk for one in query.order.page(stored.filter(query.condition()), "")] == [newest.pk]


@pytest.mark.parametrize("name", KINDS)
def test_the_api_and_files_have_the_described_fields_in_order(name, rows):
    row, schema, more = KINDS[name]
    names = [field.name for field in row_fields.shown_fields(row)]
    # A file of statistics has what the table has beside the figures: the group, its rate, and the cost of the time before.
    key, beside = (["key"], [*RATE_COLUMNS]) if name == "statistics" else ([], [])
    query = queries()[name]
    head, first, *_ = csv.reader(io.StringIO(files(rows, name, "csv", query)))
    assert head == key + names + beside
    assert len(first) == len(head)
    if name == "loops":  # values of several parts are JSON
        assert len(json.loads(first[head.index("trend")])) == 24
    line = files(rows, name, "jsonl", query).partition("\n")[0]
    assert [*json.loads(line)] == key + names + beside + [one for one in more if one == "links"]
    assert [*ninja_api.get_openapi_schema()["components"]["schemas"][schema]["properties"]] == names + more
    if name not in ("loops", "statistics"):
        assert {one.name for one in row_fields.filters_of(row)} <= {one.name for one in LISTS[name].fields}
