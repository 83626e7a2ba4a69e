"""Repeats of open incidents, and alerts after a silence; each once, and only to matching destinations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import (
    AlertDestination,
    AlertEvent,
    AlertSilence,
    Approval,
    Incident,
    Notification,
)
from detection.services.alerting import alert_routes, reminders, silences
from detection.services.incidents import loop_triage
from detection.services.policies import overrides
from tests.support.alerts import ANA, come_due, make_incident, make_route, make_webhook, note_event, send_all
from tests.support.http_receiver import Reply
from tests.support.past import move_back
from tests.support.projects import make_member


@pytest.fixture
def hook(project, receiver):
    return make_webhook(project, receiver)


def opened(project, **fields):
    incident = make_incident(project, ended_at=None, **fields)
    incident.refresh_from_db()
    note_event(incident, "opened")
    return incident


def later(**span):
    """Let time pass: everything that was told was told so much earlier."""
    move_back(Notification.objects, timedelta(**span), "finished_at")


def titles():
    return [row.title for row in Notification.objects.order_by("id")]


def remind():
    count = reminders.remind()
    send_all()
    return count


def test_an_incident_nobody_takes_up_is_told_again_after_each_interval(project, receiver, hook):
    make_route(project, hook, repeat_interval_hours=4, event_types=["opened"])
    opened(project)
    send_all()
    assert remind() == 0
    later(hours=3, minutes=59)
    assert remind() == 0
    later(minutes=2)
    assert remind() == 1
    assert remind() == 0
    later(hours=5)
    assert remind() == 1
    assert titles() == ["Loop detected: search_web", *["Still open: search_web"] * 2]
    assert len(set(receiver.ids)) == 3
    assert "open and without an owner since" in receiver.requests[1][2].decode()
    assert '"type":"incident.still_open"' in receiver.requests[1][2].decode()


def test_without_an_interval_nothing_is_told_again(project, hook):
    make_route(project, hook)
    opened(project)
    send_all()
    later(days=20)
    assert remind() == 0


@pytest.mark.parametrize(
    "take_up",
    [
        lambda row: loop_triage.assign(
            row.project_id, row.loop.public_id, ANA, make_member(row.project).username
        ),
        lambda row: loop_triage.done(row.project_id, row.loop.public_id, ANA),
        lambda row: loop_triage.fine(row.project_id, row.loop.public_id, ANA),
        lambda row: loop_triage.later(row.project_id, row.loop.public_id, ANA, until_worse=True),
        lambda row: Incident.objects.update(status="ended", recovered=True, ended_at=timezone.now()),
        lambda row: silences.create_silence(
            row.project_id,
            ANA,
            reason="known",
            ends_at=timezone.now() + timedelta(hours=1),
            tools=[row.tool],
        ),
    ],
    ids=["assigned", "done", "fine", "later", "left by the agent", "silenced"],
)
def test_what_somebody_or_the_agent_took_up_is_not_told_again(project, hook, take_up):
    make_route(project, hook, repeat_interval_hours=1, event_types=["opened"])
    incident = opened(project)
    send_all()
    take_up(incident)
    later(hours=2)
    assert remind() == 0


def test_only_who_was_told_is_reminded_and_once_whatever_routes_lead_there(project, receiver, hook):
    other = make_webhook(project, receiver, "other")
    make_route(
        project,
        hook,
        name="a",
        position=1,
        repeat_interval_hours=2,
        continue_matching=True,
        tools=["search_*"],
    )
    make_route(project, hook, name="b", position=2, repeat_interval_hours=1)
    make_route(project, other, name="c", position=3, repeat_interval_hours=1)
    opened(project)
    send_all()
    later(hours=3)
    assert remind() == 1
    assert list(Notification.objects.values_list("destination__name", flat=True)) == ["hook", "hook"]


def test_a_destination_that_cannot_be_reached_gathers_no_reminders(project, receiver, hook):
    make_route(project, hook, repeat_interval_hours=1)
    opened(project)
    send_all()
    later(hours=2)
    receiver.replies = [Reply(500)]
    assert remind() == 1
    AlertDestination.objects.update(is_enabled=False)
    later(hours=9)
    assert remind() == 0
    AlertDestination.objects.update(is_enabled=True)
    come_due()
    send_all()
    assert len(receiver.requests) == 3


def test_a_reminder_keeps_quiet_hours(project, hook):
    now = timezone.now()
    quiet: dict[str, Any] = {
        "quiet_from": (now - timedelta(hours=1)).time(), "quiet_until": (now + timedelta(hours=2)).time(), "quiet_zone": "UTC"
    }  # fmt: skip
    make_route(project, hook, repeat_interval_hours=1)
    opened(project)
    send_all()
    row = alert_routes.save_route(
        project.pk, ANA, public_id=hook.routes.get().public_id, name="all", destinations=[hook.public_id],
        repeat_interval_hours=1, **quiet,
    )  # fmt: skip
    assert row.repeat_interval_hours == 1
    later(hours=2)
    assert remind() == 1
    assert Notification.objects.get(state="waiting").due_at > now + timedelta(hours=1)


def silence(project, **fields):
    return silences.create_silence(
        project.pk, ANA, reason="index rebuild", ends_at=timezone.now() + timedelta(hours=1), **fields
    )


def test_after_a_silence_what_is_open_still_and_was_never_told_is_told_once(project, receiver, hook):
    make_route(project, hook)
    known = opened(project, session_name="s-known")
    send_all()
    hidden = silence(project)
    note_event(known, "escalated")
    opened(project, session_name="s-new")
    done = opened(project, session_name="s-done", tool="grep")
    loop_triage.done(project.pk, done.loop.public_id, ANA)
    opened(project, session_name="s-left", status="ended", recovered=True)
    send_all()
    assert len(receiver.requests) == 1
    silences.end_silence(project.pk, hidden.public_id, ANA)
    send_all()
    send_all()
    assert len(receiver.requests) == 2
    text = receiver.requests[1][2].decode()
    assert "s-new" in text
    assert "Suppressed until now by the silence “index rebuild”." in text
    assert hidden.suppressed_events.count() == 5  # what it hid stays to be seen


def test_more_than_fits_in_a_run_is_told_after_a_silence_by_the_next_ones(
    project, receiver, hook, monkeypatch
):
    monkeypatch.setattr(reminders, "MAX_AT_ONCE", 2)
    make_route(project, hook)
    hidden = silence(project)
    for number in range(5):
        opened(project, session_name=f"s-{number}")
    send_all()
    silences.end_silence(project.pk, hidden.public_id, ANA)
    assert [reminders.catch_up() for _ in range(4)] == [2, 2, 1, 0]
    assert AlertSilence.objects.get().caught_up_at is not None
    send_all()
    sent = "".join(body.decode() for _, _, body in receiver.requests)
    assert [number for number in range(5) if f'"session":"s-{number}"' in sent] == [0, 1, 2, 3, 4]


def test_an_approval_is_told_once_though_a_silence_takes_several_runs(
    project, receiver, hook, agent, monkeypatch
):
    monkeypatch.setattr(reminders, "MAX_AT_ONCE", 1)
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, ANA)
    make_route(project, hook)
    hidden = silence(project)
    for _ in range(4):
        agent.asks()
    for number in range(2):
        opened(project, session_name=f"s-{number}")
    send_all()
    silences.end_silence(project.pk, hidden.public_id, ANA)
    for _ in range(5):
        reminders.catch_up()
    late = AlertEvent.objects.filter(type="approval.requested", silence=None)
    assert late.count() == 1


def test_a_silence_that_runs_out_by_itself_is_caught_up_with_too(project, receiver, hook):
    make_route(project, hook)
    silence(project)
    opened(project)
    send_all()
    AlertSilence.objects.update(ends_at=timezone.now(), starts_at=timezone.now() - timedelta(hours=2))
    send_all()
    assert len(receiver.requests) == 1


def test_where_a_longer_silence_goes_on_it_is_told_at_its_end(project, receiver, hook):
    make_route(project, hook)
    short = silence(project)
    opened(project)
    send_all()
    longer = silences.create_silence(
        project.pk, ANA, reason="longer", ends_at=timezone.now() + timedelta(hours=9), tools=["search_*"]
    )
    silences.end_silence(project.pk, short.public_id, ANA)
    send_all()
    assert receiver.requests == []
    silences.end_silence(project.pk, longer.public_id, ANA)
    send_all()
    assert len(receiver.requests) == 1


def test_an_approval_that_a_silence_hid_is_told_while_it_can_be_answered(project, receiver, hook, agent):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, ANA)
    make_route(project, hook, event_types=["approval.requested"])
    hidden = silence(project)
    for _ in range(4):
        agent.asks()
    send_all()
    assert AlertEvent.objects.filter(type="approval.requested", state="silenced").count() == 1
    silences.end_silence(project.pk, hidden.public_id, ANA)
    send_all()
    assert len(receiver.requests) == 1
    again = silence(project)
    AlertEvent.objects.filter(type="approval.requested").update(silence=again)
    Approval.objects.update(deadline=timezone.now())
    silences.end_silence(project.pk, again.public_id, ANA)
    send_all()
    assert len(receiver.requests) == 1
