"""`/loops`: the same loop of several sessions as one row, its figures, and what people do with it."""

import csv
import io
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Incident


@pytest.fixture
def loop(api):
    """One loop of three sessions, two agents and two models."""
    for session, agent, model in (
        ("s-1", "triage", "gpt-5"),
        ("s-2", "coder", "gpt-5"),
        ("s-3", "coder", "opus"),
    ):
        api.loop(session, agent=agent, model=model)
    (one,) = api.get("/loops").json()["items"]
    return one


def test_a_loop_says_what_how_often_where_and_what_its_incidents_share(api, loop):
    number = Incident.objects.count()
    assert (loop["state"], loop["incidents"], loop["sessions"]) == ("open", number, 3)
    assert {one["name"] for one in loop["agents"]} == {"triage", "coder"}
    assert sum(loop["trend"]) == number
    found = api.get(f"/loops/{loop['id']}").json()
    assert found["shared"]["tool"]["is_shared"]
    assert found["shared"]["agent"]["distinct"] == found["shared"]["model"]["distinct"] == 2
    assert len(found["newest_incidents"]) == number
    of_it = api.get("/incidents", loop_id=loop["id"]).json()["items"]
    assert {one["id"] for one in of_it} == {one["id"] for one in found["newest_incidents"]}
    assert {one["loop_id"] for one in of_it} == {loop["id"]}
    assert loop["links"]["loop"].endswith(f"/loops/{loop['id']}")


def test_trouble_of_a_provider_is_a_loop_of_its_own(api):
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
    (outage,) = api.get("/loops", kind="outage").json()["items"]
    assert (outage["title"], outage["sessions"]) == ("Provider trouble: search (rate limit)", 2)


def test_filters_select_incidents_and_orders_have_cursors(api, loop):
    api.loop("s-9", tool="grep", agent="coder")
    of_triage = api.get("/loops", q="agent:triage").json()["items"]
    assert [(one["id"], one["sessions"]) for one in of_triage] == [(loop["id"], 1)]
    assert api.get("/loops", state="resolved").json()["items"] == []
    for order in ("", "-sessions", "incidents", "-cost", "first", "tool", "-owner"):
        whole = [one["id"] for one in api.get("/loops", sort=order).json()["items"]]
        first = api.get("/loops", sort=order, limit=1).json()
        rest = api.get("/loops", sort=order, limit=1, cursor=first["next_cursor"]).json()
        assert [first["items"][0]["id"], rest["items"][0]["id"]] == whole, order
        assert rest["next_cursor"] is None
    assert api.get("/loops", q="colour:red").json()["code"] == "invalid_filter"
    assert api.get("/loops", sort="colour").json()["code"] == "invalid_value"
    rows = list(csv.DictReader(io.StringIO(api.get("/loops/export", format="csv", q="tool:grep").text)))
    assert [row["tool"] for row in rows] == ["grep"]


def test_actions_answer_with_the_loop_and_each_can_be_undone(api, loop):
    path = f"/loops/{loop['id']}"
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
    outcome = api.post("/loops/bulk", {"ids": [loop["id"], "loop_none"], "action": "resolve"}).json()[
        "outcome"
    ]
    assert outcome == {loop["id"]: "done", "loop_none": "not_found"}
    assert api.post(f"{path}/comment", {"note": "seen"}).status_code == 200
    activity = [entry["action"] for entry in api.get(path).json()["activity"]]
    assert activity[-2:] == ["resolved", "commented"]


def test_a_mute_is_a_silence_that_names_its_loop(api, loop):
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    assert api.post("/alerts/silences", {"reason": "rebuild", "ends_at": ends_at}).json()["loop"] is None
    assert api.post(f"/loops/{loop['id']}/mute", {"until_worse": True}).status_code == 200
    found = {one["reason"]: one["loop"] for one in api.get("/alerts/silences").json()["items"]}
    assert found == {"Muted until it gets worse": loop["id"], "rebuild": None}
    api.post(f"/loops/{loop['id']}/unmute")
    (ended,) = api.get("/alerts/silences", ended="true").json()["items"]
    assert ended["loop"] == loop["id"]
