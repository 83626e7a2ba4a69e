"""`/loops`: the same loop of several sessions as one row, its figures, and what people do with it."""

import csv
import io
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import AuditEntry, Incident, Override, Session, ToolOverride


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
    assert (loop["status"], loop["incidents"], loop["sessions"]) == ("open", number, 3)
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
    assert found["trend_by_day"] == [0] * 29 + [number]
    oldest = Incident.objects.earliest("pk")
    for age, days in (
        (timedelta(days=1, hours=1), [*[0] * 28, 1, number - 1]),
        (timedelta(days=31), [*[0] * 29, number - 1]),
    ):
        Incident.objects.filter(pk=oldest.pk).update(opened_at=timezone.now() - age)
        assert api.get(f"/loops/{loop['id']}").json()["trend_by_day"] == days


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
    assert api.get("/loops", status="done").json()["items"] == []
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
        ("later", {"until_worse": True, "reason": "vendor informed"}, ("status", "later")),
        ("done", {"note": "fixed"}, ("status", "done")),
        ("fine", {"reason": "poll"}, ("label", "false_alarm")),
        ("confirm", None, ("label", "true_loop")),
    ):
        after = api.post(f"{path}/{action}", body)
        assert after.status_code == 200, after.text
        assert after.json()[changed[0]] == changed[1]
        undone = api.post(f"{path}/undo").json()
        assert (undone["status"], undone["label"], undone["later"]) == ("open", None, None), action
    later = api.post(f"{path}/later", {"hours": 8}).json()["later"]
    assert (later["baseline"], later["incidents"]) == (None, 0)
    assert api.post(f"{path}/reopen").json()["status"] == "open"
    api.post(f"{path}/fine")
    assert api.post(f"{path}/reopen").json()["label"] is None
    assert api.post(f"{path}/assign", {"assignee": "nobody"}).json()["path"] == "assignee"
    missing = api.post(f"{path}/later", {}).json()
    assert (missing["path"], missing["detail"]) == ("until", "`until`, `hours` or `until_worse` is required.")
    past = {"until": timezone.now().isoformat()}
    assert api.post(f"{path}/later", past).status_code == 422
    outcome = api.post("/loops/bulk", {"ids": [loop["id"], "loop_none"], "action": "done"}).json()["outcome"]
    assert outcome == {loop["id"]: "done", "loop_none": "not_found"}
    assert api.post(f"{path}/comment", {"note": "seen"}).status_code == 200
    activity = [entry["action"] for entry in api.get(path).json()["activity"]]
    assert activity[-2:] == ["done", "commented"]


def test_what_is_put_off_is_a_silence_that_names_its_loop(api, loop):
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    assert api.post("/alerts/silences", {"reason": "rebuild", "ends_at": ends_at}).json()["loop"] is None
    assert api.post(f"/loops/{loop['id']}/later", {"until_worse": True}).status_code == 200
    found = {one["reason"]: one["loop"] for one in api.get("/alerts/silences").json()["items"]}
    assert found == {"Later, until it gets worse": loop["id"], "rebuild": None}
    api.post(f"/loops/{loop['id']}/reopen")
    (ended,) = api.get("/alerts/silences", ended="true").json()["items"]
    assert ended["loop"] == loop["id"]


def test_what_is_fine_is_an_exception_where_the_person_says_and_both_are_undone(api, loop):
    path = f"/loops/{loop['id']}"
    offered = {one["where"]: one for one in api.get(f"{path}/fine").json()["items"]}
    assert [*offered] == ["run", "tool", "agent", "everywhere"], "a model has no settings without its backend"
    newest = api.get(path).json()["newest_incidents"][0]
    assert offered["agent"]["change"]["scope"] == f"agent:{newest['agent']}"
    assert offered["everywhere"]["change"]["scope"] == "project"
    until = (timezone.now() + timedelta(days=30)).isoformat()
    body = {"where": "agent", "note": "it polls", "expires_at": until}
    assert api.post(f"{path}/fine", body).json()["status"] == "fine"
    entry = AuditEntry.objects.filter(subject=f"agent:{newest['agent']}").latest("pk")
    assert f"it polls (from {newest['id']})" in str(entry.after)
    assert Override.objects.get(agent=newest["agent"]).expires_at is not None
    assert set(Incident.objects.values_list("label", flat=True)) == {"false_alarm"}
    undone = api.post(f"{path}/undo").json()
    assert (undone["status"], undone["label"]) == ("open", None)
    assert not Override.objects.filter(agent=newest["agent"]).exists()


def test_an_exception_leaves_the_siblings_alone_if_told_so(api, loop):
    path = f"/loops/{loop['id']}"
    after = api.post(f"{path}/fine", {"where": "tool", "siblings": False}).json()
    assert (after["status"], after["label"]) == ("open", None)
    assert ToolOverride.objects.filter(pattern="search_web").exists()
    api.post(f"{path}/undo")
    assert not ToolOverride.objects.filter(pattern="search_web").exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"where": "nowhere"}, "where"),
        ({"reason": "because"}, "reason"),
        ({"siblings": False}, "where"),
        ({"where": "run", "expires_at": "2036-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_what_cannot_be_fine_is_an_error_and_changes_nothing(api, loop, body, field):
    answer = api.post(f"/loops/{loop['id']}/fine", body)
    assert (answer.status_code, answer.json()["path"]) == (422, field)
    assert set(Incident.objects.values_list("label", flat=True)) == {""}


def test_the_counts_say_what_is_open_and_which_sessions_loop_now(api, loop):
    counts = api.get("/loop-counts").json()
    assert (counts["open"], counts["looping_sessions"]) == (1, 3)
    Session.objects.filter(external_id="s-1").update(last_loop_call_at=timezone.now() - timedelta(minutes=3))
    assert api.get("/loop-counts").json()["looping_sessions"] == 2
    api.post(f"/loops/{loop['id']}/done")
    counts = api.get("/loop-counts").json()
    assert (counts["open"], counts["done"], counts["looping_sessions"]) == (0, 1, 0)
    assert api.get("/loop-counts", colour="red").status_code == 422


def test_what_is_new_returned_or_worse_since_a_time_is_listed(api, loop):
    def changes(since):
        found = api.get("/loops/changes", since=since.isoformat()).json()["items"]
        return {one["tool"]: one["change"] for one in found}

    hour_ago = timezone.now() - timedelta(hours=1)
    assert changes(hour_ago) == {"search_web": "new"}
    assert api.get("/loops/changes").json()["items"][0]["id"] == loop["id"]
    assert changes(timezone.now()) == {}
    days_ago = timezone.now() - timedelta(days=3)
    oldest = Incident.objects.order_by("pk").first()
    Incident.objects.filter(pk=oldest.pk).update(opened_at=days_ago)
    assert changes(hour_ago) == {"search_web": "worse"}
    yesterday = timezone.now() - timedelta(hours=30)
    one = Incident.objects.latest("pk")
    for number in range(Incident.objects.count()):  # one more than within the last day
        one.pk, one.public_id, one.calls_digest = None, f"inc_{number}", f"{number}"
        one.save()
        Incident.objects.filter(pk=one.pk).update(opened_at=yesterday)
    assert changes(hour_ago) == {}, "no more than in the 24 hours before"
    api.post(f"/loops/{loop['id']}/done")
    assert changes(hour_ago) == {}
    api.loop("s-9")
    assert changes(hour_ago) == {"search_web": "returned"}
    api.post(f"/loops/{loop['id']}/later", {"until_worse": True})
    assert changes(hour_ago) == {}, "it is put off"
