"""`/patterns`: the same loop of several sessions as one row, its figures, and what people do with it."""

import csv
import io
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Incident


@pytest.fixture
def pattern(api):
    """One pattern of three sessions, two agents and two models."""
    for session, agent, model in (
        ("s-1", "triage", "gpt-5"),
        ("s-2", "coder", "gpt-5"),
        ("s-3", "coder", "opus"),
    ):
        api.loop(session, agent=agent, model=model)
    (one,) = api.get("/patterns").json()["items"]
    return one


def test_a_pattern_says_what_how_often_where_and_what_its_incidents_share(api, pattern):
    number = Incident.objects.count()
    assert (pattern["state"], pattern["incidents"], pattern["sessions"]) == ("open", number, 3)
    assert {one["name"] for one in pattern["agents"]} == {"triage", "coder"}
    assert sum(pattern["trend"]) == number
    found = api.get(f"/patterns/{pattern['id']}").json()
    assert found["shared"]["tool"]["is_shared"]
    assert found["shared"]["agent"]["distinct"] == found["shared"]["model"]["distinct"] == 2
    assert len(found["newest_incidents"]) == number
    of_it = api.get("/incidents", pattern_id=pattern["id"]).json()["items"]
    assert {one["id"] for one in of_it} == {one["id"] for one in found["newest_incidents"]}
    assert {one["pattern_id"] for one in of_it} == {pattern["id"]}
    assert pattern["links"]["pattern"].endswith(f"/patterns/{pattern['id']}")


def test_trouble_of_a_provider_is_a_pattern_of_its_own(api):
    for session in ("s-1", "s-2"):
        for number in range(6):
            call = {
                "call_id": f"c-{number}",
                "tool": "search",
                "arguments": {"q": f"topic {session} {number}"},
            }
            api.post("/guard", {"session": session, "calls": [call]})
            result = {"call_id": f"c-{number}", "content": "429 Too Many Requests", "is_error": True}
            api.post("/guard", {"session": session, "results": [result]})
    (outage,) = api.get("/patterns", kind="outage").json()["items"]
    assert (outage["title"], outage["sessions"]) == ("Provider trouble: search (rate limit)", 2)


def test_filters_select_incidents_and_orders_have_cursors(api, pattern):
    api.loop("s-9", tool="grep", agent="coder")
    of_triage = api.get("/patterns", q="agent:triage").json()["items"]
    assert [(one["id"], one["sessions"]) for one in of_triage] == [(pattern["id"], 1)]
    assert api.get("/patterns", state="resolved").json()["items"] == []
    for order in ("", "-sessions", "incidents", "-cost", "first", "tool", "-owner"):
        whole = [one["id"] for one in api.get("/patterns", sort=order).json()["items"]]
        first = api.get("/patterns", sort=order, limit=1).json()
        rest = api.get("/patterns", sort=order, limit=1, cursor=first["next_cursor"]).json()
        assert [first["items"][0]["id"], rest["items"][0]["id"]] == whole, order
        assert rest["next_cursor"] is None
    assert api.get("/patterns", q="colour:red").json()["code"] == "invalid_filter"
    assert api.get("/patterns", sort="colour").json()["code"] == "invalid_value"
    rows = list(csv.DictReader(io.StringIO(api.get("/patterns/export", format="csv", q="tool:grep").text)))
    assert [row["tool"] for row in rows] == ["grep"]


def test_actions_answer_with_the_pattern_and_each_can_be_undone(api, pattern):
    path = f"/patterns/{pattern['id']}"
    for action, body, changed in (
        ("mute", {"until_worse": True, "reason": "vendor informed"}, ("state", "muted")),
        ("acknowledge", None, ("state", "acknowledged")),
        ("resolve", {"note": "fixed"}, ("state", "resolved")),
        ("label", {"label": "false_alarm"}, ("label", "false_alarm")),
    ):
        after = api.post(f"{path}/{action}", body)
        assert after.status_code == 200, after.text
        assert after.json()[changed[0]] == changed[1]
        undone = api.post(f"{path}/undo").json()
        assert (undone["state"], undone["label"], undone["mute"]) == ("open", None, None), action
    muted = api.post(f"{path}/mute", {"hours": 8}).json()["mute"]
    assert (muted["baseline"], muted["incidents"]) == (None, 0)
    assert api.post(f"{path}/unmute").json()["state"] == "open"
    assert api.post(f"{path}/assign", {"assignee": "nobody"}).json()["path"] == "assignee"
    missing = api.post(f"{path}/mute", {}).json()
    assert (missing["path"], missing["detail"]) == ("until", "`until`, `hours` or `until_worse` is required.")
    past = {"until": timezone.now().isoformat()}
    assert api.post(f"{path}/mute", past).status_code == 422
    outcome = api.post("/patterns/bulk", {"ids": [pattern["id"], "pat_none"], "action": "resolve"}).json()[
        "outcome"
    ]
    assert outcome == {pattern["id"]: "done", "pat_none": "not_found"}
    assert api.post(f"{path}/comment", {"note": "seen"}).status_code == 200
    activity = [entry["action"] for entry in api.get(path).json()["activity"]]
    assert activity[-2:] == ["resolved", "commented"]


def test_a_mute_is_a_silence_that_names_its_pattern(api, pattern):
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    assert api.post("/alerts/silences", {"reason": "rebuild", "ends_at": ends_at}).json()["pattern"] is None
    assert api.post(f"/patterns/{pattern['id']}/mute", {"until_worse": True}).status_code == 200
    found = {one["reason"]: one["pattern"] for one in api.get("/alerts/silences").json()["items"]}
    assert found == {"Muted until it gets worse": pattern["id"], "rebuild": None}
    api.post(f"/patterns/{pattern['id']}/unmute")
    (ended,) = api.get("/alerts/silences", ended="true").json()["items"]
    assert ended["pattern"] == pattern["id"]
