"""Statistics, metrics and the audit through the API."""

from __future__ import annotations

import csv
import io
import json

import pytest

from detection.models import Incident, JudgeCall, Session
from detection.services import audit
from detection.services.audit import Actor
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.sessions import evaluation


@pytest.fixture
def worked(api):
    api.loop(times=5, backend="openai", model="gpt-5")
    api.call("s-2", tool="read_file", arguments={"path": "a"})
    count_calls()


def test_totals_and_groups_are_returned(api, worked):
    told = api.get("/statistics").json()
    assert (told["by"], told["total"]["checks"], told["total"]["incidents"], told["items"]) == (
        "total",
        6,
        1,
        [],
    )
    assert told["total"]["blocked"] >= 1
    assert told["counted_at"]
    by_tool = {row["key"]: row for row in api.get("/statistics", by="tool").json()["items"]}
    assert (by_tool["search_web"]["checks"], by_tool["read_file"]["checks"]) == (5, 1)
    by_kind = api.get("/statistics", by="kind").json()["items"]
    assert [(row["key"], row["checks"], row["incidents"]) for row in by_kind] == [("repeat", None, 1)]
    assert [row["rung"] for row in told["after_reactions"]]


def test_a_loop_that_several_detectors_find_counts_once_here_and_above_the_live_list(api, project):
    for number in range(24):
        tool = ("read_file", "grep", "open")[number % 3]
        call = {
            "type": "call",
            "session": "s-1",
            "call_id": f"c-{number}",
            "tool": tool,
            "arguments": {"p": 1},
        }
        result = {"type": "result", "session": "s-1", "call_id": f"c-{number}", "content": f"same {tool}"}
        assert api.post("/events", {"events": [call, result]}).status_code == 202
    evaluation.evaluate(Session.objects.get().key)
    total = api.get("/statistics").json()["total"]
    assert total["incidents"] == 1 < total["findings"]
    for by in ("hour", "day"):
        rows = api.get("/statistics", by=by).json()["items"]
        assert sum(row["incidents"] for row in rows) == 1, by
    assert [(row["key"], row["incidents"]) for row in api.get("/statistics", by="kind").json()["items"]] == [
        ("cycle", 1)
    ]


def test_what_followed_reactions_is_summed_by_agent_and_model(api, worked):
    total = api.get("/statistics/after-reactions").json()["items"]
    assert total
    assert [{name: row[name] for name in row if name != "key"} for row in total] == [
        {name: row[name] for name in row if name != "key"}
        for row in api.get("/statistics").json()["after_reactions"]
    ]
    for by, key in (("agent", Incident.objects.get().agent), ("model", Incident.objects.get().model)):
        rows = api.get("/statistics/after-reactions", by=by).json()["items"]
        assert {row["key"] for row in rows} == {key}
        assert [row["went_on"] for row in rows] == [row["went_on"] for row in total]
    assert api.get("/statistics/after-reactions", by="hour").status_code == 422
    later = {"from": "2031-01-01T00:00:00Z", "to": "2031-01-02T00:00:00Z"}
    assert api.get("/statistics/after-reactions", **later).json()["items"] == []


def test_labels_make_the_precision(api, worked):
    incident = Incident.objects.get()
    api.post(f"/loops/{incident.loop.public_id}/fine", {})
    assert api.get("/statistics").json()["total"]["precision"] == 0.0


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"from": "2020-01-01T00:00:00Z"},
        {"from": "2026-01-01T00:00:00Z", "to": "2026-06-01T00:00:00Z", "by": "hour"},
        {"by": "moon"}, {"since": "yesterday"}, {"from": "2026-01-01T00:00:00"},
    ],
)  # fmt: skip
def test_an_invalid_span_or_grouping_is_rejected(api, query):
    assert api.get("/statistics", **query).status_code == 422


def test_an_offset_that_only_iso_8601_knows_is_no_trouble(api):
    answer = api.get(
        "/statistics", **{"from": "2026-01-01T00:00:00-20:37", "to": "2026-01-03T00:00:00+23:59"}
    )
    assert answer.status_code == 200


def test_the_judge_s_rulings_are_counted_for_people_and_machines(api, project, client, admin_client):
    for outcome, latency in (("accepted", 200), ("denied", 400), ("denied", 600)):
        JudgeCall.objects.create(
            project=project,
            calls_digest="a",
            session_id=1,
            outcome=outcome,
            latency_ms=latency,
            input_tokens=90,
            output_tokens=10,
        )
    told = {row["outcome"]: row for row in api.get("/statistics").json()["judge"]}

    assert {outcome: row["count"] for outcome, row in told.items()} == {"accepted": 1, "denied": 2}
    assert (told["denied"]["average_latency_ms"], told["denied"]["token_count"]) == (500.0, 200)
    JudgeCall.objects.filter(latency_ms__lt=500).update(label="right")
    JudgeCall.objects.filter(latency_ms=600).update(label="wrong")
    labelled = {
        row["outcome"]: (row["right"], row["wrong"]) for row in api.get("/statistics").json()["judge"]
    }
    assert labelled == {"accepted": (1, 0), "denied": (1, 1)}
    line = f'loopguard_judge_calls_total{{outcome="denied",project="{project.slug}"}} 2.0'
    assert line in admin_client.get("/metrics").content.decode()


def test_another_project_counts_for_itself(as_other, worked):
    assert as_other.get("/statistics").json()["total"]["checks"] == 0


def test_metrics_tell_of_checks_findings_and_messages(api, worked, wsgi_client):
    text = api.client.get("http://127.0.0.1/metrics", headers=api.headers).text
    assert 'loopguard_checks_total{project="support"} 6.0' in text
    assert 'loopguard_incidents_by_kind{kind="repeat",label="none",project="support"} 1.0' in text
    assert "loopguard_alert_oldest_due_seconds 0.0" in text


def test_the_audit_is_listed_filtered_and_paged(api):
    for pattern in ("a_*", "b_*", "c_*"):
        api.put(f"/tool-rules/{pattern}", {"exempt": True})
    first = api.get("/audit", action="policy", limit=2).json()
    second = api.get("/audit", action="policy", limit=2, cursor=first["next_cursor"]).json()
    subjects = [row["subject"] for row in first["items"] + second["items"]]
    assert subjects == ["tool:c_*", "tool:b_*", "tool:a_*"]
    assert first["items"][0]["actor"].startswith("key:")
    assert first["items"][0]["request_id"]
    assert api.get("/audit", action="pol").json()["items"] == []
    assert api.get("/audit", cursor="nonsense").status_code == 422


@pytest.mark.promise("SEC-20")
def test_the_export_is_safe_to_open_and_whole(api, project):
    for subject in ('=cmd|"/c calc"!A1', "+1", "@x", "\t=1", "-5"):
        audit.record(Actor("=HYPERLINK(1)"), "test.entry", subject, project_id=project.pk, after={"n": -5})
    told = api.get("/audit/export", format="csv", action="test.entry")
    rows = list(csv.DictReader(io.StringIO(told.text)))
    assert len(rows) == 5
    for row in rows:
        assert row["subject"][0] == "'"
        assert row["actor"][0] == "'"
        assert json.loads(row["after"]) == {"n": -5}
    lines = api.get("/audit/export", action="test.entry").text.splitlines()
    assert [json.loads(line)["after"] for line in lines] == [{"n": -5}] * 5


def test_another_projects_audit_stays_hidden(as_other, worked):
    assert as_other.get("/audit", action="incident").json()["items"] == []
