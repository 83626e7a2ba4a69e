"""Notification services are reached through a library, and no setting of an address gets it past the checks."""

from __future__ import annotations

import logging

import pytest

from detection.models import DeliveryAttempt, Notification
from detection.services.alerting import destinations, notifications, notifiers
from detection.services.errors import Invalid
from detection.services.outgoing_http import AddressNotAllowed, Unreachable
from tests.support.alerts import ANA, make_incident, make_route, note_event, send_all
from tests.support.http_receiver import Reply


@pytest.mark.parametrize(
    "address",
    [
        "json://127.0.0.1/", "xml://127.0.0.1/", "file:///etc/passwd", "syslog://", "dbus://", "windows://", "fcm://a/b?keyfile=/etc/x",
        "slack://TokenA/TokenB", "https://hooks.slack.com/services/x", "", "://", "nonsense",
        "discord://1/abcdefgh?template=/etc/passwd", "mailtos://u:p@example.org?pgppub=/etc/passwd",
        "ntfy://8.8.8.8/topic?redirect=yes", "ntfys://8.8.8.8/topic?verify=no", "gotify://8.8.8.8/tok?rto=900",
        "gotify://127.0.0.1/token", "ntfy://localhost/topic", "mmost://10.0.0.1/token", "mailto://u:p@example.org?smtp=127.0.0.1",
        "ntfy://8.8.8.8:0/topic", "gotifys://8.8.8.8:00/token", "mailtos://u:p@example.org:0",
    ],
)  # fmt: skip
def test_an_address_that_needs_local_resources_or_bypasses_checks_is_rejected(settings, address):
    settings.ALERT_ALLOWED_NETWORKS = ()
    with pytest.raises(Invalid) as refused:
        notifiers.check(address)
    assert refused.value.field == "address"
    assert "passwd" not in refused.value.detail


@pytest.mark.parametrize(
    "address",
    [
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#alerts", "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
        "pagerduty://A1BRTD4JD@TIiajkdnlazkcOXrIdevi7F", "mailtos://user:word@gmail.com", "tgram://123456789:abcdefg_hijklmnop/12315544/",
    ],
)  # fmt: skip
def test_what_is_shown_of_a_service_holds_no_token(address):
    shown = notifiers.check(address)
    assert shown.startswith(address.partition("://")[0])
    assert not any(part in shown for part in ("TIiaj", "JHMHI", "word", "abcdefg"))


def test_a_message_arrives_as_plain_text(project, receiver):
    row, secret = destinations.create_destination(
        project.pk, ANA, name="phone", kind="apprise", address=f"ntfy://127.0.0.1:{receiver.port}/topic"
    )
    assert secret == ""
    make_route(project, row)
    incident = make_incident(project, tool="<!channel> @all *x*")

    note_event(incident, "opened")
    send_all()
    assert Notification.objects.get().state == "delivered"
    text = receiver.requests[0][2].decode()
    assert incident.public_id in text
    assert "<!channel>" not in text
    assert "@all" not in text


def test_an_error_contains_no_parts_of_the_address(project, receiver, caplog):
    caplog.set_level(logging.DEBUG)
    receiver.replies = [Reply(403, body=b"no")] * 3
    with pytest.raises(Unreachable) as refused:
        notifiers.notify(f"gotify://127.0.0.1:{receiver.port}/s3cr3t-token", "t", "x", is_success=False)
    assert "s3cr3t" not in str(refused.value)
    assert "s3cr3t" not in caplog.text


def test_a_connection_to_a_network_that_is_not_allowed_is_blocked_in_every_way(settings, receiver):
    settings.ALERT_ALLOWED_NETWORKS = ()
    with pytest.raises(AddressNotAllowed):
        notifiers.notify(f"ntfy://127.0.0.1:{receiver.port}/topic", "t", "x", is_success=True)
    assert receiver.requests == []


def test_the_watch_over_connections_ends_with_the_message(settings, receiver):
    notifiers.notify(f"ntfy://127.0.0.1:{receiver.port}/topic", "t", "x", is_success=True)
    settings.ALERT_ALLOWED_NETWORKS = ()
    import socket

    socket.create_connection(("127.0.0.1", receiver.port)).close()


def test_a_failure_is_on_the_log_of_the_message(project, receiver):
    receiver.replies = [Reply(500)] * 3
    row, _ = destinations.create_destination(
        project.pk, ANA, name="phone", kind="apprise", address=f"ntfy://127.0.0.1:{receiver.port}/topic"
    )
    assert notifications.send_test(project.pk, row.public_id, ANA).state == "failed"
    assert DeliveryAttempt.objects.get().problem
