"""Mail goes to a real server: whole, linked, with nothing injected, encrypted, and to no address that is closed."""

from __future__ import annotations

import logging
import shutil

import pytest

from detection.models import DeliveryAttempt, Notification
from detection.services.alerting import destinations, notifications, notifiers
from detection.services.errors import Invalid
from detection.services.incidents import loop_triage
from detection.services.outgoing_http import AddressNotAllowed, Unreachable
from tests.support.alerts import ANA, make_incident, make_route, note_event, send_all
from tests.support.smtp_server import certificate, receiving_mail

EVIL = (
    "x\r\nBcc: spy@evil.example\r\n\r\n<script>alert(1)</script><a href='http://evil.example'>@all *b* \u202e"
)


@pytest.fixture
def open_network(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    settings.PUBLIC_URL = "https://guard.example"


@pytest.fixture
def mailbox():
    with receiving_mail() as running:
        yield running


def address(mailbox, scheme="mailto", **more):
    settings = "&".join(f"{name}={value}" for name, value in more.items())
    return (
        f"{scheme}://127.0.0.1:{mailbox.port}?from=guard@loopguard.example&to=oncall@team.example&{settings}"
    )


def mail_to(project, mailbox, **more):
    row, _ = destinations.create_destination(
        project.pk, ANA, name="mail", kind="apprise", address=address(mailbox, **more)
    )
    return row


def test_an_incident_arrives_as_mail_with_its_sentence_strip_and_link(project, open_network, mailbox):
    make_route(project, mail_to(project, mailbox))
    incident = make_incident(project)
    note_event(incident, "opened")
    send_all()
    assert Notification.objects.get().state == "delivered"
    (envelope,), (message,) = mailbox.envelopes, mailbox.messages
    assert (envelope.mail_from, envelope.rcpt_tos) == ("guard@loopguard.example", ["oncall@team.example"])
    assert message["Subject"] == "Loop detected: search_web"
    text = message.get_content()
    assert "'search_web' was called with identical arguments 4 times within 2 min" in text
    assert (
        f"https://guard.example/p/support/loops/{incident.loop.public_id}?run={incident.public_id}"
        in text.splitlines()
    )


def test_no_name_note_or_reason_gets_into_headers_or_out_of_its_place(project, open_network, mailbox):
    make_route(project, mail_to(project, mailbox))
    incident = make_incident(project, tool=EVIL[:128], agent=EVIL[:128], session_name=EVIL)
    note_event(incident, "later", EVIL, EVIL)
    loop_triage.done(project.pk, incident.loop.public_id, ANA, EVIL)
    send_all()
    (envelope,), (message,) = mailbox.envelopes, mailbox.messages
    assert envelope.rcpt_tos == ["oncall@team.example"]
    assert message["To"] == "oncall@team.example"
    assert message["Bcc"] is None
    assert set(message.keys()) == {
        "Content-Type", "Content-Transfer-Encoding", "MIME-Version", "X-Application", "Subject", "From", "To", "Date",
        "Message-ID",
    }  # fmt: skip
    assert not message.defects
    assert "\n" not in message["Subject"]
    assert message.get_content_type() == "text/plain"  # the only part: there is no markup to get out of
    for spelled in ("<script", "<a ", "http://evil", "@all", "@evil", "\u202e", "\nBcc"):
        assert spelled not in message.get_content()
        assert spelled not in message["Subject"]


def test_what_would_get_as_far_as_the_library_stays_one_header_and_one_plain_part(open_network, mailbox):
    notifiers.notify(address(mailbox), "t\r\nBcc: spy@evil.example", "<b>1</b>\r\n\r\nx: y", is_success=True)
    (envelope,), (message,) = mailbox.envelopes, mailbox.messages
    assert envelope.rcpt_tos == ["oncall@team.example"]
    assert message["Bcc"] is None
    assert message["Subject"] == "t Bcc: spy@evil.example"
    assert (message.get_content_type(), message.get_content().split()) == (
        "text/plain",
        ["<b>1</b>", "x:", "y"],
    )


def test_who_gets_mail_is_in_no_log(open_network, mailbox):
    written: list[str] = []

    class Written(logging.Handler):
        def emit(self, record):
            written.append(f"{record.name} {record.getMessage()}")

    handler = Written()
    logging.getLogger().addHandler(handler)  # where the deployment's log is written
    try:
        notifiers.notify(address(mailbox), "t", "x", is_success=True)
    finally:
        logging.getLogger().removeHandler(handler)
    assert mailbox.envelopes
    assert not [line for line in written if not line.startswith("mail.log") and "oncall@" in line]


def test_a_refusing_server_is_a_failed_attempt_without_parts_of_the_address(project, open_network, mailbox):
    row = mail_to(project, mailbox)
    mailbox.refusal = "554 no"
    assert notifications.send_test(project.pk, row.public_id, ANA).state == "failed"
    problem = DeliveryAttempt.objects.get().problem
    assert problem
    assert "oncall@team.example" not in problem


def test_a_mail_server_in_a_network_that_is_not_allowed_is_rejected_when_saved_and_when_sent(
    settings, mailbox
):
    settings.ALERT_ALLOWED_NETWORKS = ()
    for host in ("127.0.0.1", "localhost", "10.0.0.1", "[::1]"):
        for spelled in (
            f"mailto://{host}:{mailbox.port}?from=a@b.example&to=c@d.example",
            f"mailtos://u:p@public.example:{mailbox.port}?smtp={host}&to=c@d.example",
        ):
            with pytest.raises(Invalid):
                notifiers.check(spelled)
    with pytest.raises(AddressNotAllowed):
        notifiers.notify(address(mailbox), "t", "x", is_success=True)
    assert mailbox.envelopes == []


@pytest.mark.parametrize("more", [{}, {"scheme": "mailtos", "mode": "insecure"}])
def test_mail_to_the_internet_is_encrypted_or_rejected(settings, more):
    settings.ALERT_ALLOWED_NETWORKS = ()
    scheme, mode = more.get("scheme", "mailto"), more.get("mode", "insecure")
    spelled = f"{scheme}://8.8.8.8?from=a@b.example&to=c@d.example&mode={mode}"
    with pytest.raises(Invalid, match="needs encryption"):
        notifiers.check(spelled)
    with pytest.raises(AddressNotAllowed, match="needs encryption"):
        notifiers.notify(spelled, "t", "x", is_success=True)
    assert notifiers.check(spelled.replace("=insecure", "=starttls").replace("mailto:", "mailtos:"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the server's certificate")
def test_an_encrypted_server_is_spoken_to_only_when_its_certificate_holds(
    open_network, tmp_path, monkeypatch
):
    file, context = certificate(tmp_path)
    with receiving_mail(tls=context) as mailbox:
        with pytest.raises(Unreachable):
            notifiers.notify(address(mailbox, "mailtos", mode="starttls"), "t", "x", is_success=True)
        assert mailbox.envelopes == []
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        notifiers.notify(address(mailbox, "mailtos", mode="starttls"), "t", "x", is_success=True)
        assert [message["Subject"] for message in mailbox.messages] == ["t"]
