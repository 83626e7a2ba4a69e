"""POST, GET /what-if: a change is tried on the history before it is saved."""

from datetime import UTC, datetime, timedelta

import pytest

from detection.services.what_if import worker
from tests.support.projects import make_key

from .conftest import Api

pytestmark = pytest.mark.django_db


def test_a_change_is_tried_saved_and_outdated(api):
    api.loop("s-1")
    incident = api.get("/incidents").json()["items"][0]
    api.post(f"/loops/{incident['loop_id']}/confirm", {})
    change = {"scope": f"tool:{incident['tool']}", "exempt": True}
    made = api.post("/what-if", {**change, "days": 30})
    assert made.status_code == 202
    assert (made.json()["state"], made.json()["result"]) == ("waiting", None)
    worker.run_waiting(lambda: False)
    shown = api.get(f"/what-if/{made.json()['id']}").json()
    assert (shown["state"], shown["progress"]["share"], shown["is_outdated"]) == ("finished", 1, False)
    lost = shown["result"]["lost"]
    assert (lost["items"][0]["incident"], lost["labelled"]) == (incident["id"], {"true_loop": 1})
    assert shown["result"]["recorded"]["reproduced"] == shown["result"]["recorded"]["incidents"]
    assert shown["result"]["coverage"]["share"] == 1
    assert shown["change"]["scope"] == change["scope"]
    (listed,) = api.get("/what-if").json()["items"]
    assert listed["result"]["lost"] == {**lost, "items": []}
    api.put(f"/tool-rules/{incident['tool']}", {"exempt": True, "note": "tried"})
    assert api.get(f"/what-if/{made.json()['id']}").json()["is_outdated"]
    assert api.post(f"/what-if/{made.json()['id']}/cancel").json()["code"] == "conflict"


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({"scope": "planet"}, "scope", "invalid_value"),
        ({"scope": "project", "values": {"max_repeats": 1}}, "values.max_repeats", "invalid_setting"),
        ({"scope": "project", "days": 8}, "days", "invalid_value"),
        ({"scope": "session"}, "session", "missing"),
        ({"scope": "project", "note": "why"}, "note", "unknown_field"),
    ],
)
def test_a_wrong_change_is_rejected_with_its_path(api, body, path, code):
    answer = api.post("/what-if", body)
    assert (answer.status_code, answer.json()["path"], answer.json()["code"]) == (422, path, code)


def test_other_projects_and_projects_without_payloads(api, project, other_project):
    api.call("s-1")
    other = Api(api.client, make_key(other_project))
    assert other.post("/what-if", {"scope": "session", "session": "s-1"}).status_code == 404
    made = api.post("/what-if", {"scope": "session", "session": "s-1"}).json()
    assert other.get(f"/what-if/{made['id']}").status_code == 404
    assert other.get("/what-if").json()["items"] == []
    project.stores_payloads = False
    project.save()
    assert api.post("/what-if", {"scope": "project"}).json()["code"] == "payloads_not_stored"


def test_not_a_loop_has_a_reason_and_exceptions_that_can_be_tried_saved_and_undone(api):
    api.loop("s-1")
    incident = api.get("/incidents").json()["items"][0]
    path = f"/incidents/{incident['id']}"
    fine = f"/loops/{incident['loop_id']}/fine"
    assert api.post(fine, {"reason": "nonsense"}).json()["path"] == "reason"
    assert api.post(fine, {"reason": "broken_tool"}).json()["status"] == "fine"
    labelled = api.get(path).json()
    assert (labelled["label"], labelled["label_reason"]) == ("false_alarm", "broken_tool")
    assert api.get("/statistics").json()["false_alarms"] == [{"reason": "broken_tool", "count": 1}]
    options = api.get(f"{path}/exceptions").json()["items"]
    (suggested,) = [one for one in options if one["is_suggested"]]
    # Identical calls are found whether or not the tool is expected to fail.
    assert suggested["option"] == "session:raise"
    assert "tool:fallible" not in {one["option"] for one in options}
    assert options[0]["option"].startswith("session:")
    assert api.post("/what-if", suggested["change"]).status_code == 202
    until = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    saved = api.post(f"{path}/exceptions", {"option": "tool:poll", "expires_at": until})
    assert (saved.status_code, saved.json()["action"]) == (200, "excepted")
    rule = api.get(f"/tool-rules/{incident['tool']}").json()
    assert (rule["tool_class"], datetime.fromisoformat(rule["expires_at"])) == (
        "poll",
        datetime.fromisoformat(until),
    )
    again = api.post(f"{path}/exceptions", {"option": "tool:nothing"})
    assert (again.status_code, again.json()["path"]) == (422, "option")
    assert api.post(f"{path}/exceptions/undo").json()["action"] == "exception_undone"
    assert api.get(f"/tool-rules/{incident['tool']}").status_code == 404
    assert api.post(f"{path}/exceptions/undo").json()["code"] == "nothing_to_undo"
    assert api.post(f"{path}/exceptions", {"option": "session:off"}).status_code == 200
    assert api.get("/sessions/s-1").json()["policy_values"]["repeat_enabled"] is False
    assert api.post(f"{path}/exceptions/undo").status_code == 200
    assert api.get("/sessions/s-1").json()["policy_values"] == {}
    assert api.post(f"/loops/{incident['loop_id']}/undo").status_code == 200
    assert api.get(path).json()["label_reason"] is None


def test_an_override_may_expire(api):
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    put = api.put("/agent-overrides/triage", {"values": {"max_repeats": 6}, "expires_at": until}).json()
    assert datetime.fromisoformat(put["expires_at"]) == datetime.fromisoformat(until)
    for wrong, code in (("soon", "invalid_type"), ("2020-01-01T00:00:00Z", "out_of_range")):
        answer = api.put("/agent-overrides/triage", {"values": {"max_repeats": 6}, "expires_at": wrong})
        assert (answer.status_code, answer.json()["path"], answer.json()["code"]) == (422, "expires_at", code)
