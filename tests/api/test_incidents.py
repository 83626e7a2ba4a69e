"""Everything under /api/v1/incidents."""

import csv
import io
import json
from xml.etree import ElementTree as ET

import pytest

from detection.models import Incident, Session
from detection.selectors.pages import CHUNK_ROWS


@pytest.fixture
def incident(api):
    return api.loop("s-1", agent="triage", backend="openai", model="gpt-5")["verdicts"][0]["incident"]


def ids(answer):
    return [item["id"] for item in answer.json()["items"]]


def test_the_list_is_filtered_and_paged(api, incident):
    others = [api.loop(f"s-{number}", tool="read_file")["verdicts"][0]["incident"] for number in (2, 3)]
    assert ids(api.get("/incidents")) == [*reversed(others), incident]
    assert ids(api.get("/incidents", tool="search_web")) == [incident]
    assert ids(api.get("/incidents", session="s-3")) == [others[1]]
    assert ids(api.get("/incidents", agent="triage", backend="openai", model="gpt-5", kind="repeat")) == [
        incident
    ]
    assert ids(api.get("/incidents", q="search")) == [incident]
    assert ids(api.get("/incidents", status="done")) == []
    page = api.get("/incidents", limit=2).json()
    assert ids(api.get("/incidents", limit=2, cursor=page["next_cursor"])) == [incident]
    loop = api.get(f"/incidents/{incident}").json()["loop_id"]
    api.post(f"/loops/{loop}/fine", {})
    assert ids(api.get("/incidents", label="false_alarm")) == [incident]
    # It ends with the label, although findings of the loop are still collected.
    ended = api.get(f"/incidents/{incident}").json()
    assert (ended["is_active"], ended["ended_at"] > ended["last_seen_at"]) == (False, True)
    api.loop("s-1")
    again = api.get(f"/incidents/{incident}").json()
    assert again["last_seen_at"] > again["ended_at"] == ended["ended_at"]
    assert ids(api.get("/incidents", label="none")) == [*reversed(others)]


def test_the_detail_has_evidence_settings_activity_and_neighbours(api, incident):
    neighbour = api.loop("s-2")["verdicts"][0]["incident"]
    detail = api.get(f"/incidents/{incident}").json()
    assert (detail["count"], detail["limit"], detail["kind"], detail["decision"]) == (4, 4, "repeat", "block")
    assert detail["evidence"]
    assert detail["policy"]
    assert [item["id"] for item in detail["neighbours"]] == [neighbour]
    assert detail["links"]["incident"].endswith(f"/p/support/incidents/{incident}")


def test_an_export_has_the_order_and_filters_of_the_list(api, incident):
    api.loop("s-2", tool="=cmd|'/c calc'!A1")
    lines = api.get("/incidents/export").text.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids(api.get("/incidents"))
    answer = api.get("/incidents/export", format="csv", tool="search_web")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["x-loopguard-schema"] == "1"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in rows] == [incident]
    assert rows[0]["count"] == "4"
    assert api.get("/incidents/export", format="xlsx").status_code == 422


@pytest.mark.promise("SEC-20")
@pytest.mark.parametrize("start", ["=", "+", "-", "@", "＝", "＋", "－", "＠"])
def test_no_cell_of_a_csv_is_a_formula(api, start):
    api.loop("s-1", tool=f"{start}1+1", agent=f'{start}"quoted", and more')
    rows = list(csv.DictReader(io.StringIO(api.get("/incidents/export", format="csv").text)))
    assert rows[0]["tool"] == f"'{start}1+1"
    assert rows[0]["agent"] == f'\'{start}"quoted", and more'


def test_a_long_export_is_complete(api, incident):
    row = Incident.objects.get()
    Incident.objects.bulk_create(
        Incident(project_id=row.project_id, loop_id=row.loop_id, session_name=f"s-{n}", calls_digest=f"{n}", kind="repeat", tool="t", count=4, limit=4,
                 decision="stop", first_seq=1, last_seq=4)
        for n in range(CHUNK_ROWS + 20)
    )  # fmt: skip
    lines = api.get("/incidents/export").text.splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == CHUNK_ROWS + 21
    assert len(api.get("/incidents/export", limit=7).text.splitlines()) == 7


def test_the_calls_of_an_incident_are_seen_as_a_picture(api, as_other, with_scopes):
    api.loop(tool="<script>alert(1)</script>", agent='"/><b>')
    incident = api.get("/incidents").json()["items"][0]["id"]
    told = with_scopes("read").get(f"/incidents/{incident}/strip.svg")
    assert (told.status_code, told.headers["Content-Type"]) == (200, "image/svg+xml")
    assert "default-src 'none'" in told.headers["Content-Security-Policy"]
    assert told.headers["X-Content-Type-Options"] == "nosniff"
    tags = {one.tag.rpartition("}")[2] for one in ET.fromstring(told.text).iter()}
    assert tags == {"svg", "title", "rect", "path"}
    assert "4 calls" in told.text
    Session.objects.all().delete()  # by retention: the evidence is drawn
    assert "4 calls" in api.get(f"/incidents/{incident}/strip.svg").text
    assert as_other.get(f"/incidents/{incident}/strip.svg").status_code == 404
    assert with_scopes("guard").get(f"/incidents/{incident}/strip.svg").status_code == 403
    assert api.get("/incidents/inc_unknown/strip.svg").status_code == 404
