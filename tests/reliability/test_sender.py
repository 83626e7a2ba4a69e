"""A sender that is killed between delivery and marking repeats itself under the same id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Notification
from tests.support.alerts import make_incident, make_route, make_webhook, note_event, send_all
from tests.support.http_receiver import Reply, receiving

from . import installation

pytestmark = pytest.mark.servers

SENDER = "import django; django.setup(); from detection.services.alerting import delivery; delivery.run(budget_seconds=30)"


@pytest.fixture(autouse=True)
def local(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)


@pytest.mark.promise("REL-26")
def test_a_sender_killed_while_it_waits_for_the_receipt_repeats_the_same_id(project):
    with receiving() as receiver:
        receiver.replies = [Reply(after_seconds=20)]
        make_route(project, make_webhook(project, receiver), group_by=["session"])
        note_event(make_incident(project), "opened")
        environment = {
            **os.environ,
            "DATABASE_URL": installation.test_database_url(),
            "LOOPGUARD_MODE": "test",
            "DJANGO_SETTINGS_MODULE": "loopguard_site.settings",
            "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
        }
        sender = subprocess.Popen([sys.executable, "-c", SENDER], cwd=installation.ROOT, env=environment)
        arrived = installation.wait_until(lambda: len(receiver.requests) == 1)
        os.kill(sender.pid, signal.SIGKILL)
        sender.wait(10)
        assert arrived
        assert not Notification.objects.filter(state="delivered").exists()

        Notification.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
        send_all()

        assert len(receiver.ids) == 2
        assert len(set(receiver.ids)) == 1
        assert [row.state for row in Notification.objects.all()] == ["delivered"]
