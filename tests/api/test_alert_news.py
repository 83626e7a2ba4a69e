"""News besides incidents through the API and to a real receiver: a session close to a limit."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from detection.models import Incident, LimitNotice, TrackerState
from detection.services import delivery
from tests.services.receiver import receiving


@pytest.fixture
def receiver(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    settings.PUBLIC_URL = "https://guard.example"
    with receiving() as running:
        yield running


@pytest.fixture
def route_of(api, receiver):
    """Make a route to the receiver that takes the given news."""
    hook = api.post(
        "/alerts/destinations", {"name": "hook", "kind": "webhook", "address": receiver.url}
    ).json()

    def make(*transitions, **values):
        body = {
            "name": "news", "destinations": [hook["id"]], "group_wait_seconds": 0, "transitions": transitions, **values
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


def test_a_session_close_to_a_limit_is_told_once_in_words_and_in_fields(api, receiver, route_of):
    set_limits(api, budget_max_calls=10)
    route_of("session.near_limit")
    answers = calls(api, range(9), agent="triage")
    (body,) = bodies(receiver)
    (told,) = body["data"]["transitions"]
    assert body["type"] == told["transition"] == "session.near_limit"
    assert body["data"]["severity"] == "info"
    assert body["data"]["title"] == "Close to a limit: s-1"
    assert "session s-1 has used 8 of 10 calls; nothing was stopped" in body["data"]["text"]
    assert "https://guard.example/p/support/session?name=s-1" in body["data"]["text"]
    assert told["incident"] is None
    about = {name: told["session"][name] for name in ("id", "used", "limit", "unit", "agent", "tool")}
    assert about == {
        "id": "s-1",
        "used": 8,
        "limit": 10,
        "unit": "calls",
        "agent": "triage",
        "tool": "search_web",
    }
    assert not Incident.objects.exists()
    for answer in answers:  # the agent gets to know nothing of it
        (verdict,) = answer.json()["verdicts"]
        assert (verdict["decision"], verdict["message"], verdict["finding"]) == ("allow", "", None)


def test_a_limit_is_told_of_once_however_often_counting_begins_anew(api, receiver, route_of):
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
    assert [row.limit for row in LimitNotice.objects.all()] == [10, 20]


def test_two_limits_that_come_close_with_one_call_are_both_told_of(api, receiver, route_of):
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
    assert (body["type"], body["data"]["title"]) == ("news.gathered", "Close to a limit: s-1 and 1 more")


def test_a_route_that_did_not_choose_the_news_does_not_get_it(api, receiver, route_of):
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
    assert body["data"]["transitions"][0]["session"]["id"] == name
    line = body["data"]["text"].splitlines()[-1]
    assert line.startswith("https://guard.example/p/support/session?name=..%2F%40all")
    assert not set(body["data"]["title"]) & set("<>@#&")
    assert parse_qs(urlsplit(line).query) == {"name": [name]}
