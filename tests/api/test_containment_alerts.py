"""Containments as alert events: what a signed webhook, such as the kill address of a runner, is sent, and when."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from detection.models import AlertEvent, ApiKey, DeliveryAttempt
from detection.services.containments import containments
from tests.support.alerts import come_due, send_all
from tests.support.http_receiver import Reply, receiving

TYPES = ["containment.created", "containment.lifted", "containment.ended"]


@pytest.fixture(autouse=True)
def local(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)


@pytest.fixture
def kill():
    with receiving() as receiver:
        yield receiver


def destination(api, receiver, name="runner"):
    body = {"name": name, "kind": "webhook", "address": receiver.url}
    answer = api.post("/alerts/destinations", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def route(api, to, **more):
    body = {
        "name": "kill",
        "destinations": [to["id"]],
        "event_types": TYPES,
        "group_wait_seconds": 3600,
        **more,
    }
    answer = api.post("/alerts/routes", body)
    assert answer.status_code == 201, answer.text


def contain(api, scope="agent", value="support", reaction="stop", **more):
    answer = api.post("/containments", {"scope": scope, "value": value, "reaction": reaction, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def bodies(receiver):
    return [json.loads(body) for _, _, body in receiver.requests]


def test_a_kill_address_is_told_at_once_what_is_contained_and_whom_it_reaches(api, as_other, kill):
    to = destination(api, kill)
    route(api, to, quiet_from="00:00", quiet_until="23:59")
    for name in ("a", "b"):
        api.call(name, agent="support")
    api.call("c", agent="research")
    as_other.call("d", agent="support")
    found = contain(api, reason="it deletes orders")
    assert send_all() == 1
    (_, headers, sent) = kill.requests[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + sent
    secret = base64.b64decode(to["signing_secret"].removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == expected
    body = json.loads(sent)
    assert (body["type"], body["data"]["severity"]) == ("containment.created", "critical")
    told = body["data"]["events"][0]["containment"]
    assert sorted(told.pop("sessions")) == ["a", "b"]
    assert told.pop("url").endswith("/contain")
    assert told == {name: found[name] for name in told}
    assert told["reaches"] == {"can_stop": 2, "can_block": 0, "watch_only": 0}
    assert "2 can be stopped" in body["data"]["text"]
    assert "it deletes orders" in body["data"]["text"]


def test_its_end_is_told_once_whether_it_is_lifted_or_its_time_is_over(api, kill, monkeypatch):
    route(api, destination(api, kill))
    lifted = contain(api)
    ends = contain(
        api, "tool", "send_mail", "block", until=(timezone.now() + timedelta(minutes=5)).isoformat()
    )
    api.delete(f"/containments/{lifted['id']}")
    assert containments.note_ended() == 0
    later = timezone.now() + timedelta(minutes=6)
    monkeypatch.setattr("detection.clock.now", lambda: later)
    assert containments.note_ended() == 1
    assert containments.note_ended() == 0
    send_all()
    events = [event for body in bodies(kill) for event in body["data"]["events"]]
    assert [(event["type"], event["containment"]["id"], event["actor"][:4]) for event in events] == [
        ("containment.created", lifted["id"], "key:"),
        ("containment.created", ends["id"], "key:"),
        ("containment.lifted", lifted["id"], "key:"),
        ("containment.ended", ends["id"], "syst"),
    ]
    assert events[2]["containment"]["sessions"] == []


def test_a_preview_tells_nobody(api, kill):
    route(api, destination(api, kill))
    api.call("a", agent="support")
    wanted = {"scope": "agent", "value": "support", "reaction": "stop"}
    assert api.post("/containments?preview=true", wanted).status_code == 200
    assert send_all() == 0
    assert not AlertEvent.objects.filter(type__startswith="containment").exists()


def test_no_silence_keeps_it_from_the_kill_address(api, kill):
    route(api, destination(api, kill))
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    assert api.post("/alerts/silences", {"reason": "maintenance", "ends_at": ends_at}).status_code == 201
    contain(api)
    assert send_all() == 1


def test_a_failed_delivery_is_repeated_under_its_id_and_shown(api, kill):
    kill.replies = [Reply(500, body=b"not now")]
    route(api, destination(api, kill))
    contain(api)
    assert send_all() == 1
    (shown,) = api.get("/alerts/notifications").json()["items"]
    assert shown["state"] == "waiting"
    come_due()
    assert send_all() == 1
    assert len(kill.ids) == 2
    assert len(set(kill.ids)) == 1
    assert api.get("/alerts/notifications").json()["items"][0]["state"] == "delivered"
    assert [*DeliveryAttempt.objects.order_by("number").values_list("status", flat=True)] == [500, 200]


def test_routes_match_what_is_contained(api, kill):
    route(api, destination(api, kill), agents=["support"], severities=["critical"])
    contain(api, value="research")
    contain(api, reaction="block")
    assert send_all() == 0
    contain(api)
    assert send_all() == 1


def test_each_project_hears_of_a_containment_of_the_server(api, as_other, kill):
    route(api, destination(api, kill))
    api.call("a")
    as_other.call("b")
    call_command("contain", "block", "server")
    assert send_all() == 1
    assert bodies(kill)[0]["data"]["events"][0]["containment"]["sessions"] == ["a"]
    assert AlertEvent.objects.filter(type="containment.created").count() == 2


@pytest.mark.parametrize("given_to", ["session", "agent", "key"])
def test_a_route_matches_tags_of_the_session_its_agent_and_its_key(api, kill, given_to):
    route(api, destination(api, kill), tags=["check*"], event_types=["opened"], group_wait_seconds=0)
    loop = {"agent": "support", "tool": "search_web"}
    for _ in range(6):
        api.call("without", **loop)
    assert send_all() == 0
    if given_to == "agent":
        api.put("/agents/support/tags", {"tags": ["checkout"]})
    elif given_to == "key":
        ApiKey.objects.update(tags=["checkout"])
    tags = {"tags": ["checkout"]} if given_to == "session" else {}
    for _ in range(6):
        api.call("with", **loop, **tags)
    assert send_all() == 1
    (event,) = bodies(kill)[0]["data"]["events"]
    assert (event["incident"]["session"], event["incident"]["tags"]) == ("with", ["checkout"])
    assert "api_key" not in event["incident"]


def test_a_silence_of_a_tag_suppresses_what_has_it_and_nothing_else(api, kill):
    route(api, destination(api, kill), event_types=["opened"], group_wait_seconds=0)
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    silence = {"reason": "load test", "ends_at": ends_at, "tags": ["load"]}
    assert api.post("/alerts/silences", silence).json()["tags"] == ["load"]
    for name, tags in (("quiet", ["load"]), ("loud", ["prod"])):
        for _ in range(6):
            api.call(name, agent=name, tags=tags)
    send_all()
    events = [event for body in bodies(kill) for event in body["data"]["events"]]
    assert {event["incident"]["session"] for event in events} == {"loud"}
