"""Since your last visit: what has changed on Now, with undo and resend, until it is marked as read."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import Approval, Membership, Notification, Override, Role
from detection.services.alerting import delivery, notifications
from detection.services.audit import Actor
from detection.services.policies import overrides
from tests.console.scenes import loop, text
from tests.support.alerts import make_webhook
from tests.support.http_receiver import Reply, receiving

ANA = Actor("ana")


def now(world):
    return text(world.client.get(f"{world.base}/now"))


@pytest.fixture
def away(world):
    """A person who was here an hour ago."""
    before = timezone.now() - timedelta(hours=1)
    Membership.objects.filter(project_id=world.project.pk).update(seen_at=before, last_visit_at=None)
    return world


def test_a_first_visit_has_none_before_it(world):
    assert "Since your last visit" not in now(world)


def test_new_loops_and_what_they_cost_are_listed_until_they_are_marked_as_read(away):
    loop(away.project, "dear", tool="run_sql", cost_usd=0.5, calls=6)
    page = now(away)
    assert "Since your last visit" in page
    assert "Loops that began since cost $" in page
    assert "blocked calls saved about $" in page
    assert "run_sql" in page.partition("Since your last visit")[2]
    assert "new, 1 run" in page
    away.client.post(f"{away.base}/loops/read", {"next": f"{away.base}/now"})
    page = now(away)
    assert "Nothing has changed." in page
    assert "run_sql" not in page.partition("Since your last visit")[2]


def test_a_change_of_settings_is_undone_in_place(away):
    overrides.save_override(away.project.pk, PROJECT, {"max_repeats": 9}, ANA, "for a while")
    page = away.client.get(f"{away.base}/now").content.decode()
    assert "by ana" in text(away.client.get(f"{away.base}/now"))
    entry = page.partition('name="entry" value="')[2].partition('"')[0]
    moved = away.client.post(f"{away.base}/policies/history", {"entry": entry, "next": f"{away.base}/now"})
    assert moved["Location"] == f"{away.base}/now"
    assert not Override.objects.filter(project_id=away.project.pk, backend="").exists()
    Membership.objects.filter(project_id=away.project.pk).update(role=Role.VIEWER)
    assert 'name="entry"' not in away.client.get(f"{away.base}/now").content.decode()


def test_an_alert_that_was_not_delivered_is_sent_again(away, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as receiver:
        hook = make_webhook(away.project, receiver, "on-call")
        receiver.replies = [Reply(500, body=b"no")]
        notifications.send_test(away.project.pk, hook.public_id, ANA)
        page = now(away)
        assert "not delivered to on-call" in page
        row = Notification.objects.get()
        away.client.post(f"{away.base}/alerts/act", {"action": "resend", "id": row.public_id})
        delivery.run(5)
    row.refresh_from_db()
    assert row.state == "delivered"
    assert "not delivered to on-call" not in now(away)


def test_held_calls_that_expired_and_loops_that_ended_are_counted(away):
    overrides.save_override(away.project.pk, PROJECT, {"mode": "ask"}, ANA)
    loop(away.project, "unanswered", calls=6)
    Approval.objects.update(state="expired", decision="block", decided_at=timezone.now())
    away.session.project.incidents.update(status="done", ended_at=timezone.now())
    page = now(away)
    assert "1 held call that nobody answered in time" in page
    assert "ended by" in page
