"""Alerts through the API: what is set up, what is sent, and what stays secret."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from detection.models import AlertDestination, AuditEntry
from detection.services.alerting import delivery
from tests.support.http_receiver import Reply

SOON = (datetime.now(UTC) + timedelta(hours=8)).isoformat()


@pytest.fixture
def hook(api, receiver):
    return api.post(
        "/alerts/destinations", {"name": "hook", "kind": "webhook", "address": receiver.url}
    ).json()


def test_a_loop_reaches_the_receiver_and_the_log(api, receiver, hook):
    api.post("/alerts/routes", {"name": "all", "destinations": [hook["id"]], "group_wait_seconds": 0})
    api.loop()
    delivery.run(5)
    (message,) = api.get("/alerts/notifications").json()["items"]
    assert (message["state"], message["destination"], message["event_count"]) == ("delivered", hook["id"], 1)
    assert receiver.ids == [message["id"]]
    told = api.get(f"/alerts/notifications/{message['id']}").json()
    assert told["payload"]["data"]["events"][0]["incident"]["tool"] == "search_web"
    assert [(one["status"], one["response"]) for one in told["attempts"]] == [(200, "ok")]
    incident = told["payload"]["data"]["events"][0]["incident"]["id"]
    assert len(api.get("/alerts/notifications", incident=incident).json()["items"]) == 1
    assert api.get("/alerts/notifications", incident="inc_other").json()["items"] == []


def test_addresses_and_secrets_never_come_back(api, receiver, hook):
    assert hook["signing_secret"].startswith("whsec_")
    added = api.post(f"/alerts/destinations/{hook['id']}/secrets").json()["signing_secret"]
    api.patch(f"/alerts/destinations/{hook['id']}", {"address": receiver.url + "?again"})
    shown = api.get("/alerts/destinations").text + api.get("/audit").text + api.get("/audit/export").text
    for secret in ("s3cr3t-path", hook["signing_secret"], added, "whsec_"):
        assert secret not in shown
    assert api.get("/alerts/destinations").json()["items"][0]["signing_secrets"] == 2
    api.delete(f"/alerts/destinations/{hook['id']}/secrets")
    assert AlertDestination.objects.get().signing_secrets == [added]


def test_an_internal_address_is_rejected_with_the_field(api, settings):
    settings.ALERT_ALLOWED_NETWORKS = ()
    told = api.post(
        "/alerts/destinations", {"name": "x", "kind": "webhook", "address": "https://169.254.169.254/"}
    )
    assert (told.status_code, told.json()["code"], told.json()["path"]) == (
        422,
        "address_not_allowed",
        "address",
    )


def test_the_test_button_shows_the_outcome(api, receiver, hook):
    receiver.replies = [Reply(418, body=b"teapot")]
    told = api.post(f"/alerts/destinations/{hook['id']}/test").json()
    assert (told["state"], told["attempts"][0]["status"], told["attempts"][0]["response"]) == (
        "failed",
        418,
        "teapot",
    )
    assert api.post(f"/alerts/destinations/{hook['id']}/test").json()["state"] == "delivered"


def test_answers_of_receivers_are_for_admins_only(api, with_scopes, receiver, hook):
    told = api.post(f"/alerts/destinations/{hook['id']}/test").json()
    reader = with_scopes("read")
    assert reader.get(f"/alerts/notifications/{told['id']}").json()["attempts"][0]["response"] is None
    assert reader.post(f"/alerts/destinations/{hook['id']}/test").status_code == 403
    assert reader.get("/audit").status_code == 403


def test_a_route_is_stored_replaced_and_removed(api, hook):
    values = {
        "name": "night", "destinations": [hook["id"]], "severities": ["high", "critical"], "models": ["gpt-*"],
        "quiet_from": "22:00", "quiet_until": "07:00", "quiet_zone": "Europe/Berlin", "continue_matching": True,
        "repeat_interval_hours": 4,
    }  # fmt: skip
    made = api.post("/alerts/routes", values)
    assert made.status_code == 201
    assert {name: made.json()[name] for name in values} == values
    route = made.json()["id"]
    assert api.put(f"/alerts/routes/{route}", {**values, "name": "day"}).json()["name"] == "day"
    assert api.post("/alerts/routes", {**values, "name": "day"}).json()["code"] == "name_taken"
    assert api.delete(f"/alerts/routes/{route}").status_code == 204
    assert api.get("/alerts/routes").json()["items"] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quiet_zone", "Europe/Nowhere"), ("destinations", ["dst_unknown"]), ("destinations", []), ("group_wait_seconds", 9999), ("kinds", ["magic"]),
        ("quiet_from", "22:00"), ("unknown", 1), ("repeat_interval_hours", 721), ("repeat_interval_hours", -1), ("event_types", ["still_open"]), ("tools", ["x" * 200]), ("name", ""),
    ],
)  # fmt: skip
def test_an_invalid_route_is_rejected_with_the_field(api, hook, field, value):
    told = api.post("/alerts/routes", {"name": "r", "destinations": [hook["id"]], field: value})
    assert told.status_code == 422
    assert field in told.json()["path"]


def test_a_silence_shows_what_it_holds_back_until_it_ends(api, hook):
    api.post("/alerts/routes", {"name": "all", "destinations": [hook["id"]], "group_wait_seconds": 0})
    made = api.post("/alerts/silences", {"reason": "rebuild", "ends_at": SOON, "tools": ["search_*"]})
    assert made.status_code == 201
    api.loop()
    delivery.run(5)
    assert api.get("/alerts/silences").json()["items"][0]["suppressed_count"] == 1
    assert api.get("/alerts/notifications").json()["items"] == []
    assert api.delete(f"/alerts/silences/{made.json()['id']}").status_code == 204
    assert api.get("/alerts/silences").json()["items"] == []
    assert len(api.get("/alerts/silences", ended="true").json()["items"]) == 1


def test_every_active_silence_is_listed(api):
    for number in range(51):
        body = {"reason": "rebuild", "ends_at": SOON, "tools": [f"t-{number}"]}
        assert api.post("/alerts/silences", body).status_code == 201
    assert len(api.get("/alerts/silences").json()["items"]) == 51


@pytest.mark.parametrize(
    "ends_at", ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "2026-01-01T00:00:00", None]
)
def test_nothing_is_silent_for_ever_or_from_no_zone(api, ends_at):
    assert api.post("/alerts/silences", {"reason": "x", "ends_at": ends_at}).status_code == 422


def test_failed_messages_can_be_sent_again(api, receiver, hook):
    receiver.replies = [Reply(410)]
    api.post("/alerts/routes", {"name": "all", "destinations": [hook["id"]], "group_wait_seconds": 0})
    api.loop()
    delivery.run(5)
    assert [row["state"] for row in api.get("/alerts/notifications").json()["items"]] == ["failed"]
    assert api.get("/alerts/destinations").json()["items"][0]["state"] == "disabled"
    api.patch(f"/alerts/destinations/{hook['id']}", {"is_enabled": True})
    assert api.post("/alerts/notifications/resend", {}).json() == {"count": 1}
    delivery.run(5)
    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1


def test_another_projects_things_are_not_found(api, as_other, hook):
    message = api.post(f"/alerts/destinations/{hook['id']}/test").json()["id"]
    for method, path, body in (
        ("PATCH", f"/alerts/destinations/{hook['id']}", {"name": "mine"}),
        ("DELETE", f"/alerts/destinations/{hook['id']}", None),
        ("POST", f"/alerts/destinations/{hook['id']}/test", None),
        ("POST", f"/alerts/destinations/{hook['id']}/secrets", None),
        ("GET", f"/alerts/notifications/{message}", None),
        ("POST", "/alerts/notifications/resend", {"ids": [message]}),
    ):
        assert as_other.request(method, path, json=body).status_code == 404, path
    told = as_other.post("/alerts/routes", {"name": "r", "destinations": [hook["id"]]})
    assert (told.status_code, told.json()["path"]) == (422, "destinations")
    assert as_other.get("/alerts/destinations").json()["items"] == []
    assert as_other.get("/alerts/notifications").json()["items"] == []


def test_every_change_is_in_the_audit(api, hook):
    api.post(f"/alerts/destinations/{hook['id']}/test")
    made = api.post("/alerts/routes", {"name": "all", "destinations": [hook["id"]]}).json()
    api.delete(f"/alerts/routes/{made['id']}")
    silence = api.post("/alerts/silences", {"reason": "x", "ends_at": SOON}).json()
    api.delete(f"/alerts/silences/{silence['id']}")
    api.delete(f"/alerts/destinations/{hook['id']}")
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert actions >= {
        "destination.create", "destination.test", "route.create", "route.delete", "silence.create", "silence.end",
        "destination.delete",
    }  # fmt: skip
