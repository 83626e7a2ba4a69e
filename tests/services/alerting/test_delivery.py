"""Notifications are delivered at least once under one id; a failing destination delays no other and loses nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import AlertDestination, AlertEvent, AuditEntry, DeliveryAttempt, Notification
from detection.services.alerting import delivery, destinations, notifications, routing
from tests.support.alerts import ANA, come_due, make_incident, make_route, make_webhook, note_event, send_all
from tests.support.http_receiver import Reply, receiving
from tests.support.projects import make_project
from tests.support.threads import all_results, in_thread

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def local(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)


@pytest.fixture
def hook(project, receiver):
    hook = make_webhook(project, receiver)
    make_route(project, hook, group_by=["session"])
    return hook


def tell(project, session="s-1", event_type="opened"):
    note_event(make_incident(project, session_name=session), event_type)


def states():
    return sorted(Notification.objects.values_list("state", flat=True))


@pytest.mark.promise("SEC-16")
def test_a_message_arrives_signed_with_every_active_secret(project, receiver):
    hook, first = destinations.create_destination(
        project.pk, ANA, name="hook", kind="webhook", address=receiver.url
    )
    second = destinations.add_signing_secret(project.pk, hook.public_id, ANA)
    make_route(project, hook)
    tell(project)
    assert send_all() == 1
    path, headers, body = receiver.requests[0]
    assert path == "/hook/s3cr3t-path"
    assert json.loads(body)["id"] == headers["webhook-id"] == Notification.objects.get().public_id
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = {
        "v1," + base64.b64encode(hmac.digest(base64.b64decode(secret[6:]), signed, hashlib.sha256)).decode()
        for secret in (first, second)
    }
    assert set(headers["webhook-signature"].split()) == expected
    assert states() == ["delivered"]


@pytest.mark.promise("SEC-16")
def test_a_retry_repeats_the_id_and_the_bytes(project, receiver, hook):
    receiver.replies = [Reply(500, body=b"boom")]
    tell(project)
    send_all()
    message = Notification.objects.get()
    assert message.state == "waiting"
    wait = (message.due_at - timezone.now()).total_seconds()
    assert 55 < wait < 70
    come_due()
    send_all()
    assert len(set(receiver.ids)) == 1
    assert receiver.requests[0][2] == receiver.requests[1][2]
    attempts = DeliveryAttempt.objects.values_list("number", "status", "is_success", "response")
    assert list(attempts) == [(1, 500, False, "boom"), (2, 200, True, "ok")]


def test_after_the_last_try_a_message_is_failed_and_can_be_sent_again(project, receiver, hook):
    receiver.replies = [Reply(503) for _ in range(delivery.TRIES)]
    tell(project)
    for _ in range(delivery.TRIES):
        send_all()
        come_due()
    assert states() == ["failed"]
    assert delivery.RETRY_SECONDS[0] == 60
    assert delivery.RETRY_SECONDS[-1] == 24 * 3600
    assert notifications.resend(project.pk, None, ANA) == 1
    come_due()
    send_all()
    assert states() == ["delivered"]
    assert len(set(receiver.ids)) == 1


def test_a_sender_killed_after_the_receiver_said_yes_repeats_the_same_id(project, receiver, hook):
    tell(project)
    routing.route_pending()
    (job,) = delivery.claim_due(10)
    assert delivery.attempt(job).is_success  # … and the process dies before it is noted
    assert delivery.claim_due(10) == []
    Notification.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    send_all()
    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1
    assert states() == ["delivered"]


def test_a_claim_that_was_taken_over_notes_nothing(project, receiver, hook):
    tell(project)
    routing.route_pending()
    (late,) = delivery.claim_due(10)
    Notification.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    (again,) = delivery.claim_due(10)
    assert again.public_id == late.public_id
    assert not delivery.settle(late, delivery.DeliveryOutcome(False, 1, problem="late"))
    assert delivery.settle(again, delivery.DeliveryOutcome(True, 1, 200))
    assert states() == ["delivered"]


@pytest.mark.promise("REL-25")
def test_a_slow_and_a_dead_destination_delay_no_other_and_lose_nothing(project, receiver, monkeypatch):
    monkeypatch.setattr("detection.services.outgoing_http.DEADLINE_SECONDS", 1.0)
    with receiving() as slow, receiving() as dead:
        slow.replies = [Reply(after_seconds=3) for _ in range(9)]
        good, sluggish, gone = (
            make_webhook(project, each, name)
            for each, name in ((receiver, "good"), (slow, "slow"), (dead, "dead"))
        )
        make_route(project, good, sluggish, gone, group_by=["session"])
    dead_ids = AlertDestination.objects.get(name="dead")
    for number in range(5):
        tell(project, f"s-{number}")
    send_all()
    assert {headers["webhook-id"] for _, headers, _ in receiver.requests} == set(
        Notification.objects.filter(destination=good).values_list("public_id", flat=True)
    )
    assert Notification.objects.filter(destination=good, state="delivered").count() == 5
    assert Notification.objects.exclude(destination=good).filter(state="waiting").count() == 10
    dead_ids.refresh_from_db()
    assert dead_ids.failures_in_row == delivery.BREAKER_FAILURES
    assert dead_ids.paused_until > timezone.now()
    # The breaker is open: what waits costs no attempt until the pause is over, and then one.
    assert delivery.claim_due(10) == []


def test_a_breaker_closes_with_the_first_success_and_the_rest_follows(project, receiver, hook):
    receiver.replies = [Reply(500) for _ in range(3)]
    for number in range(3):
        tell(project, f"s-{number}")
    send_all()
    hook.refresh_from_db()
    assert hook.paused_until is not None
    assert len(receiver.ids) == 3
    come_due()
    send_all()
    hook.refresh_from_db()
    assert (hook.failures_in_row, hook.paused_until, hook.last_problem) == (0, None, "")
    assert states() == ["delivered"] * 3


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_by_the_whole_destination(project, receiver, hook, status):
    receiver.replies = [Reply(status, {"Retry-After": "7200"})]
    tell(project, "s-1")
    tell(project, "s-2")
    send_all()
    hook.refresh_from_db()
    assert len(receiver.ids) == 1
    pause = (hook.paused_until - timezone.now()).total_seconds()
    assert 7100 < pause <= 7200
    assert states() == ["waiting", "waiting"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("120", 120), ("999999999999", 86_400), ("soon", None), ("-5", None), ("", None)]
)
def test_retry_after_is_read_within_reason(text, seconds):
    read = delivery._retry_after(text)
    assert (read.total_seconds() if read is not None else None) == seconds


@pytest.mark.promise("REL-25")
def test_a_redirect_is_a_failure_and_is_not_followed(project, receiver, hook):
    receiver.replies = [Reply(307, {"Location": receiver.url + "/elsewhere"})]
    tell(project)
    send_all()
    assert len(receiver.requests) == 1
    assert "Redirects are not followed" in DeliveryAttempt.objects.get().problem


def test_gone_disables_the_destination_and_says_so(project, receiver, hook):
    receiver.replies = [Reply(410)]
    tell(project)
    send_all()
    hook.refresh_from_db()
    assert not hook.is_enabled
    assert states() == ["failed"]
    assert AuditEntry.objects.filter(action="destination.disable", actor="system").exists()


def test_an_address_whose_network_is_no_longer_allowed_is_rejected_at_sending(
    project, receiver, hook, settings
):
    settings.ALERT_ALLOWED_NETWORKS = ()
    tell(project)
    send_all()
    assert receiver.requests == []
    assert "neither public nor in a network" in DeliveryAttempt.objects.get().problem


def test_a_kept_answer_is_cut(project, receiver, hook):
    receiver.replies = [Reply(400, body=b"\x00\xff" * 9000)]
    tell(project)
    send_all()
    assert 0 < len(DeliveryAttempt.objects.get().response) <= delivery.KEPT_RESPONSE_BYTES


def test_the_test_button_sends_at_once_past_the_breaker(project, receiver, hook):
    AlertDestination.objects.update(paused_until=timezone.now() + timedelta(hours=1), failures_in_row=5)
    message = notifications.send_test(project.pk, hook.public_id, ANA)
    assert message.state == "delivered"
    assert json.loads(receiver.requests[0][2])["type"] == "test"
    hook.refresh_from_db()
    assert hook.paused_until is None


def test_a_failed_test_is_not_tried_again(project, receiver, hook):
    receiver.replies = [Reply(500)]
    assert notifications.send_test(project.pk, hook.public_id, ANA).state == "failed"


def test_every_transition_is_in_one_message_of_a_destination(project, receiver, hook):
    for number in range(30):
        tell(project, f"s-{number % 4}")
    send_all()
    told = [
        entry["incident"]["id"]
        for _, _, body in receiver.requests
        for entry in json.loads(body)["data"]["events"]
    ]
    assert len(told) == len(set(told)) == 30
    assert set(AlertEvent.objects.values_list("state", flat=True)) == {"routed"}


def test_a_disabled_destination_keeps_what_waits(project, receiver, hook):
    destinations.update_destination(project.pk, hook.public_id, ANA, is_enabled=False)
    tell(project)
    send_all()
    assert receiver.ids == []
    destinations.update_destination(project.pk, hook.public_id, ANA, is_enabled=True)
    send_all()
    assert states() == ["delivered"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_several_senders_at_once_send_every_message_once(receiver):
    project = make_project()
    hooks = [make_webhook(project, receiver, f"hook {number}") for number in range(4)]
    make_route(project, *hooks, group_by=["session"])
    for number in range(10):
        tell(project, f"s-{number}")

    made = sum(all_results([in_thread(send_all) for _ in range(4)]))
    while sent := send_all():  # it takes five seconds at most
        made += sent
    assert made == 40
    assert len(receiver.ids) == len(set(receiver.ids)) == 40
    assert states() == ["delivered"] * 40


def test_a_message_that_cannot_be_rendered_fails_and_delays_no_other(project, receiver, hook):
    tell(project, "s-1")
    tell(project, "s-2")
    while routing.route_pending():
        pass
    first = AlertEvent.objects.order_by("id").first()
    AlertEvent.objects.filter(pk=first.pk).update(facts={"session": "s-1"})
    for _ in range(2):
        come_due()
        send_all()
    assert states() == ["delivered", "failed"]
    assert len(receiver.requests) == 1
