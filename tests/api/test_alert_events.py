"""Alert events without an incident, through the API and to a real receiver: a session close to a limit, approvals."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import pytest
from django.utils import timezone

from detection.models import AlertEvent, Approval, Incident, LimitNotice, Notification, TrackerState
from detection.services.alerting import delivery, rendering, routing


@pytest.fixture(autouse=True)
def public_url(settings):
    settings.PUBLIC_URL = "https://guard.example"


@pytest.fixture
def route_of(api, receiver):
    """Make a route to the receiver that takes the given news."""
    hook = api.post(
        "/alerts/destinations", {"name": "hook", "kind": "webhook", "address": receiver.url}
    ).json()

    def make(*transitions, **values):
        body = {
            "name": "news", "destinations": [hook["id"]], "group_wait_seconds": 0, "event_types": transitions, **values
        }  # fmt: skip
        answer = api.post("/alerts/routes", body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return make


def bodies(receiver):
    delivery.run(5)
    return [json.loads(body) for _, _, body in receiver.requests]


def set_limits(api, **values):
    assert api.put("/overrides", {"values": values}).status_code == 200


def calls(api, numbers, **about):
    return [api.call(arguments={"n": n}, **about) for n in numbers]


def test_a_session_close_to_a_limit_has_one_alert_event_with_sentence_and_fields(api, receiver, route_of):
    set_limits(api, budget_max_calls=10)
    route_of("session.near_limit")
    answers = calls(api, range(9), agent="triage")
    (body,) = bodies(receiver)
    (told,) = body["data"]["events"]
    assert body["type"] == told["type"] == "session.near_limit"
    assert body["data"]["severity"] == "info"
    assert body["data"]["title"] == "Close to a limit: s-1"
    assert "session s-1 has used 8 of 9 calls; nothing was stopped" in body["data"]["text"]
    assert "https://guard.example/p/support/session?name=s-1" in body["data"]["text"]
    assert told["incident"] is None
    about = {name: told["session"][name] for name in ("id", "used", "limit", "unit", "agent", "tool")}
    assert about == {
        "id": "s-1",
        "used": 8,
        "limit": 9,
        "unit": "calls",
        "agent": "triage",
        "tool": "search_web",
    }
    assert not Incident.objects.exists()
    for answer in answers:  # the agent gets to know nothing of it
        (verdict,) = answer.json()["verdicts"]
        assert (verdict["decision"], verdict["message"], verdict["finding"]) == ("allow", "", None)


def test_a_limit_has_one_alert_event_however_often_counting_restarts(api, receiver, route_of):
    set_limits(api, budget_max_calls=10)
    route_of("session.near_limit")
    calls(api, range(9))
    api.post("/sessions/s-1/stop", {})
    api.post("/sessions/s-1/resume")
    TrackerState.objects.update(snapshot=b"of another version")
    calls(api, range(20, 29))
    assert LimitNotice.objects.count() == len(bodies(receiver)) == 1
    set_limits(api, budget_max_calls=20)
    calls(api, range(40, 50))
    assert [row.limit for row in LimitNotice.objects.all()] == [9, 19]


def test_two_limits_nearly_reached_by_one_call_both_have_an_alert_event(api, receiver, route_of):
    set_limits(api, budget_max_calls=10, budget_max_tokens=200)
    route_of("session.near_limit", group_by=[])
    for number in range(9):
        call = {
            "call_id": f"t-{number}",
            "tool": "read",
            "arguments": {"n": number},
            "usage": {"input_tokens": 20},
        }
        api.post("/guard", {"session": "s-1", "calls": [call]})
    assert {row.unit for row in LimitNotice.objects.all()} == {"calls", "tokens"}
    (body,) = bodies(receiver)
    assert (body["type"], body["data"]["title"]) == ("alerts.grouped", "Close to a limit: s-1 and 1 more")


def test_a_route_without_the_event_type_does_not_match(api, receiver, route_of):
    set_limits(api, budget_max_calls=10)
    route_of("opened", "ended")
    calls(api, range(9))
    assert bodies(receiver) == []
    assert LimitNotice.objects.count() == 1


def test_what_a_session_is_called_cannot_lead_elsewhere(api, receiver, route_of):
    set_limits(api, budget_max_calls=10)
    route_of("session.near_limit")
    name = "../@all <b>x</b>?q=1&a=é#frag"
    calls(api, range(8), session=name)
    (body,) = bodies(receiver)
    assert body["data"]["events"][0]["session"]["id"] == name
    line = body["data"]["text"].splitlines()[-1]
    assert line.startswith("https://guard.example/p/support/session?name=..%2F%40all")
    assert not set(body["data"]["title"]) & set("<>@#&")
    assert parse_qs(urlsplit(line).query) == {"name": [name]}


def ask(api, session="s-1", **values):
    """Let a call be held for a person; its approval."""
    assert api.put("/overrides/openai", {"values": {"mode": "ask", **values}}).status_code == 200
    return api.loop(session, backend="openai", agent="triage")["verdicts"][0]["approval"]


def test_a_requested_approval_is_notified_with_deadline_and_unattended_reaction(api, receiver, route_of):
    route_of("approval.requested")
    approval = ask(api, unattended_reaction="stop")
    (body,) = bodies(receiver)
    (told,) = body["data"]["events"]
    assert (body["type"], body["data"]["severity"]) == ("approval.requested", "high")
    assert body["data"]["title"] == "Call held: search_web"
    deadline = datetime.fromisoformat(approval["deadline"])
    text = body["data"]["text"]
    assert (
        f"waits for your answer until {deadline:%H:%M:%S} UTC. Without one, a stop of the run is requested"
        in text
    )
    assert f"https://guard.example/p/support/held#{approval['id']}" in text
    assert told["approval"]["id"] == approval["id"]
    assert datetime.fromisoformat(told["approval"]["deadline"]) == deadline
    assert (told["approval"]["state"], told["approval"]["unattended"]) == ("open", "stop")
    assert told["incident"]["id"] == Incident.objects.get().public_id


@pytest.mark.parametrize(
    ("choice", "decision", "words"),
    [
        ({"choice": "skip"}, "block", " skipped the call"),
        ({"choice": "raise", "raise_by": 3}, "allow", "raised the limit by 3"),
    ],
)
def test_the_end_of_an_approval_is_notified_to_the_same_destination(
    api, receiver, route_of, choice, decision, words
):
    route_of("approval.requested", "approval.closed", severities=["high"])
    approval = ask(api)
    assert len(bodies(receiver)) == 1
    api.post(f"/approvals/{approval['id']}/decision", choice)
    body = bodies(receiver)[1]
    assert body["type"] == "approval.closed"
    assert words in body["data"]["text"]
    assert body["data"]["events"][0]["approval"]["decision"] == decision


def test_an_expired_approval_and_one_of_a_stopped_session_differ(api, receiver, route_of):
    route_of("approval.closed", group_by=[])
    approval = ask(api)
    Approval.objects.update(deadline=timezone.now())
    assert api.get(f"/approvals/{approval['id']}").json()["state"] == "expired"
    ask(api, "s-2")
    api.post("/sessions/s-2/stop", {})
    (body,) = bodies(receiver)
    assert "nobody decided in time, so the call is skipped" in body["data"]["text"]
    assert "it is no longer needed because a stop was requested" in body["data"]["text"]


def test_an_approval_closed_before_sending_is_notified_as_closed(api, receiver, route_of):
    route_of("approval.requested", group_wait_seconds=3600)
    approval = ask(api)
    assert bodies(receiver) == []
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "skip"})
    Notification.objects.update(due_at=timezone.now())
    (body,) = bodies(receiver)
    assert body["data"]["title"] == "Held call closed: search_web"
    assert "is closed: " in body["data"]["text"]
    assert body["data"]["events"][0]["approval"]["state"] == "decided"


@pytest.mark.parametrize("event_type", ["opened", "approval.requested"])
def test_a_held_call_is_one_event_for_routes_of_either_type(api, receiver, route_of, event_type):
    route_of(event_type)
    ask(api, repeat_warn_at="0")
    (body,) = bodies(receiver)
    assert (body["type"], body["data"]["event_count"]) == ("approval.requested", 1)
    assert AlertEvent.objects.count() == 1


def test_an_incident_that_was_open_before_its_approval_keeps_its_event(api, receiver, route_of):
    route_of("opened", "approval.requested", group_by=[])
    assert api.put("/overrides/openai", {"values": {"mode": ["block", "ask"]}}).status_code == 200
    assert api.loop(times=5, backend="openai")["decision"] == "hold"
    told = [one["type"] for body in bodies(receiver) for one in body["data"]["events"]]
    assert told == ["opened", "approval.requested"]


def all_day_quiet(**values):
    now = timezone.now()
    start, end = now - timedelta(hours=1), now + timedelta(hours=20)
    return {"quiet_from": f"{start:%H:%M}", "quiet_until": f"{end:%H:%M}", "quiet_zone": "UTC", **values}


def test_an_approval_is_not_gathered_past_its_deadline_nor_held_by_quiet_hours(api, receiver, route_of):
    route_of(group_wait_seconds=3600, **all_day_quiet())
    approval = ask(api, answer_timeout_seconds=200)
    delivery.run(5)
    (message,) = Notification.objects.all()
    assert message.items.count() == 1
    left = datetime.fromisoformat(approval["deadline"]) - message.due_at
    assert timedelta(seconds=120) < left < timedelta(seconds=180)


def test_quiet_hours_that_hold_critical_ones_hold_an_approval_too(api, receiver, route_of):
    route_of("approval.requested", **all_day_quiet(quiet_delays_critical=True))
    ask(api)
    assert bodies(receiver) == []
    assert Notification.objects.get().due_at > timezone.now() + timedelta(hours=1)


def test_an_approval_is_notified_at_once_in_a_flapping_group(api, receiver, route_of):
    route_of("approval.requested", group_by=[])
    for number in range(routing.FLAPPING_COUNT + 2):
        ask(api, f"s-{number}")
        assert len(bodies(receiver)) == number + 1


def test_a_remembered_decision_notifies_nobody(api, receiver, route_of):
    route_of("approval.requested", "approval.closed")
    approval = ask(api)
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "skip", "remember": True})
    before = len(bodies(receiver))
    ask(api, "s-2")
    assert len(bodies(receiver)) == before
    assert Approval.objects.filter(session__external_id="s-2", reason="remembered").exists()


def test_a_receiver_gets_the_strip_as_a_picture_in_bounds(api, receiver, route_of):
    route_of("opened", "session.near_limit", group_by=[])
    set_limits(api, budget_max_calls=10)
    for number in range(rendering.MAX_DRAWN):
        api.loop(f"s-{number}", tool=f"tool-{number}<script>")
    calls(api, range(8), session="s-near")
    (body,) = bodies(receiver)
    pictures = [told["strip_svg"] for told in body["data"]["events"]]
    assert [bool(one) for one in pictures] == [True] * rendering.MAX_DRAWN + [False]
    for one in filter(None, pictures):
        assert len(one) <= 4096
        assert ET.fromstring(one).tag == "{http://www.w3.org/2000/svg}svg"
        assert "script" not in one
    assert "cells" not in json.dumps(body)
