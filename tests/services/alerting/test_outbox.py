"""A change of an incident becomes exactly one message for each destination, at the right time, or visibly none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from detection.models import (
    AlertDestination,
    AlertEvent,
    AlertRoute,
    Incident,
    Notification,
    NotificationItem,
    Session,
)
from detection.services.alerting import event_facts, outbox, rendering, routing, silences
from detection.services.incidents import loop_triage
from detection.services.retention import retention
from tests.support.alerts import ANA, make_incident, make_route, note_event


@pytest.fixture
def target(project):
    return AlertDestination.objects.create(
        project=project, name="chat", kind="webhook", address="https://x.example", shown_address="x"
    )


def note(project, event_type="opened", **fields):
    incident = make_incident(project, **fields)
    note_event(incident, event_type)
    return incident


def recorded():
    return [(row.type, row.actor) for row in AlertEvent.objects.all()]


def test_a_loop_that_is_found_and_blocked_is_one_piece_of_news(agent):
    for _ in range(5):
        agent.asks()
    opened = AlertEvent.objects.get(type="opened")
    assert opened.facts["tool"] == "search_web"
    assert opened.facts["strip"].startswith("A")
    assert {row.type for row in AlertEvent.objects.all()} <= {"opened", "escalated"}


def test_an_ended_session_tells_that_the_loop_ended(agent):
    for _ in range(4):
        agent.asks()
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.end_abandoned()
    assert AlertEvent.objects.filter(type="ended").count() == 1
    assert Incident.objects.get().activity.filter(action="ended").count() == 1


def test_what_people_do_is_told_once_and_remarks_are_not(project):
    incident = make_incident(project)
    loop_id = incident.loop.public_id
    for _ in range(2):
        loop_triage.done(project.pk, loop_id, ANA)
    loop_triage.comment(project.pk, loop_id, ANA, "looking at it")
    loop_triage.confirm(project.pk, loop_id, ANA)
    loop_triage.later(project.pk, loop_id, ANA, until_worse=True)
    loop_triage.reopen(project.pk, loop_id, ANA)
    loop_triage.fine(project.pk, loop_id, ANA, "poll")
    loop_triage.undo(project.pk, loop_id, ANA)
    types = ("done", "confirmed", "later", "reopened", "fine", "undone")
    assert recorded() == [(one, "ana") for one in types]


def test_a_change_that_is_rolled_back_leaves_nothing_in_the_outbox(project):
    incident = make_incident(project)
    with transaction.atomic():
        loop_triage.done(project.pk, incident.loop.public_id, ANA)
        transaction.set_rollback(True)
    assert recorded() == []


def test_each_destination_hears_of_a_transition_once_whatever_routes_lead_there(project, target):
    make_route(project, target, name="first", position=1, continue_matching=True)
    make_route(project, target, name="second", position=2)
    note(project)
    routing.route_pending()
    routing.route_pending()
    assert NotificationItem.objects.count() == Notification.objects.count() == 1
    assert Notification.objects.get().route_name == "first"


def test_the_first_route_that_matches_takes_it_unless_it_lets_others_see_it(project, target):
    other = AlertDestination.objects.create(
        project=project, name="mail", kind="webhook", address="https://y.example", shown_address="y"
    )
    make_route(project, target, name="critical", position=1, severities=["critical"])
    make_route(project, target, name="triage", position=2, agents=["tri*"], model_names=["gpt-*"])
    make_route(project, other, name="rest", position=3)
    note(project)
    note(project, agent="coder", session_name="s-2")
    routing.route_pending()
    assert sorted(Notification.objects.values_list("route_name", flat=True)) == ["rest", "triage"]


def test_what_no_route_wants_stays_visible(project, target):
    make_route(project, target, kinds=["cycle"])
    note(project)
    note(project, is_demo=True, kind="cycle")
    routing.route_pending()
    assert set(AlertEvent.objects.values_list("state", flat=True)) == {"unrouted"}


def test_transitions_of_one_group_share_a_message_until_it_is_sent(project, target):
    make_route(project, target, group_by=["session", "loop"], group_wait_seconds=60)
    note(project)
    note(project, "ended")
    note(project, session_name="s-2")
    routing.route_pending()
    assert sorted(message.items.count() for message in Notification.objects.all()) == [1, 2]
    Notification.objects.update(payload="{}", attempt_count=1)
    note(project)
    routing.route_pending()
    assert Notification.objects.count() == 3


@pytest.mark.promise("REL-26")
def test_a_group_that_flaps_is_gathered_longer(project, target):
    make_route(project, target, group_by=["loop"])
    for _ in range(routing.FLAPPING_COUNT + 3):
        note(project)
        routing.route_pending()
        Notification.objects.filter(due_at__lte=timezone.now()).update(state="delivered", payload="{}")
    assert Notification.objects.count() == routing.FLAPPING_COUNT + 1
    last = Notification.objects.first()
    assert last.items.count() == 3
    assert last.due_at > timezone.now() + timedelta(minutes=9)


def test_a_silence_holds_back_and_shows_what_it_hides(project, target):
    make_route(project, target)
    silence = silences.create_silence(
        project.pk,
        ANA,
        reason="index rebuild",
        ends_at=timezone.now() + timedelta(hours=1),
        tools=["search_*"],
    )
    note(project)
    note(project, tool="run_tests")
    routing.route_pending()
    assert [row.facts["tool"] for row in silence.suppressed_events.all()] == ["search_web"]
    assert NotificationItem.objects.count() == 1
    silences.end_silence(project.pk, silence.public_id, ANA)
    note(project)
    routing.route_pending()
    assert NotificationItem.objects.count() == 2


def test_a_planned_silence_holds_nothing_back_before_it_starts(project, target):
    make_route(project, target)
    start = timezone.now() + timedelta(hours=1)
    silences.create_silence(
        project.pk, ANA, reason="planned", starts_at=start, ends_at=start + timedelta(hours=1)
    )
    note(project)
    routing.route_pending()
    assert Notification.objects.count() == 1


QUIET = AlertRoute(quiet_from=time(22), quiet_until=time(7), quiet_zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(2026, 7, 1, 19, 59, tzinfo=UTC), datetime(2026, 7, 1, 19, 59, tzinfo=UTC)),
        (datetime(2026, 7, 1, 20, 0, tzinfo=UTC), datetime(2026, 7, 2, 5, 0, tzinfo=UTC)),
        (datetime(2026, 7, 2, 4, 59, tzinfo=UTC), datetime(2026, 7, 2, 5, 0, tzinfo=UTC)),
        (datetime(2026, 7, 2, 5, 0, tzinfo=UTC), datetime(2026, 7, 2, 5, 0, tzinfo=UTC)),
        (datetime(2026, 10, 24, 21, 0, tzinfo=UTC), datetime(2026, 10, 25, 6, 0, tzinfo=UTC)),
    ],
)
def test_quiet_hours_end_at_the_local_time_of_their_zone_over_midnight_and_clock_changes(moment, expected):
    assert routing.after_quiet_hours(QUIET, moment) == expected


def test_quiet_hours_hold_what_is_not_critical(project, target):
    now = timezone.now()
    quiet: dict[str, Any] = {
        "quiet_from": (now - timedelta(hours=1)).time(), "quiet_until": (now + timedelta(hours=2)).time(), "quiet_zone": "UTC"
    }  # fmt: skip
    make_route(project, target, group_by=["session"], **quiet)
    note(project)
    note(project, decision="stop", session_name="s-2")
    routing.route_pending()
    due = {row.group_key: row.due_at for row in Notification.objects.all()}
    assert sorted(at > now + timedelta(hours=1) for at in due.values()) == [False, True]


def test_one_transition_that_cannot_be_routed_holds_up_no_other(project, target):
    make_route(project, target)
    note(project)
    AlertEvent.objects.update(facts={"broken": True})
    note(project)
    routing.route_pending()
    assert list(AlertEvent.objects.values_list("state", flat=True)) == ["failed", "routed"]


@pytest.mark.promise("SEC-11")
def test_texts_hold_no_mention_markup_link_or_hidden_character(project):
    nasty = "<!channel> @everyone [x](http://evil.example) `rm` **b** \u202egpj.exe\n\nBcc: a@b.c\x1b[31m"
    incident = make_incident(project, tool=nasty[:128], agent=nasty[:128], session_name=nasty)
    for event_type in ("opened", "returned", "ended", "done"):
        text = rendering.sentence(event_type, nasty, event_facts.incident_facts(incident))
        assert not set(text) & set("<>@`*[]\n\r\x1b\u202e")
        assert "://" not in text
        assert "\n" not in text


def test_the_payload_links_to_the_incident_and_says_what_happened(project, settings):
    settings.PUBLIC_URL = "https://guard.example"
    incident = note(project)
    entries = list(AlertEvent.objects.all())
    body = json.loads(rendering.payload("msg_1", "support", entries, timezone.now()))
    assert body["type"] == "incident.opened"
    assert body["data"]["severity"] == "high"
    link = f"https://guard.example/p/support/loops/{incident.loop.public_id}?run={incident.public_id}"
    assert body["data"]["events"][0]["incident"]["url"] == link
    assert link in body["data"]["text"]
    assert "'search_web' was called with identical arguments 4 times within 2 min" in body["data"]["text"]


def test_the_sentence_about_a_slow_loop_names_all_calls(project):
    evidence = {"results": "equal", "detail": {"tool": "search_web", "calls": 11}, "window_calls": None}
    incident = make_incident(project, count=3, window_seconds=600, evidence=evidence)
    text = rendering.sentence("opened", "system", event_facts.incident_facts(incident))
    assert "'search_web' was called with identical arguments 11 times within 10 min" in text


def test_the_sentence_about_scattered_calls_names_their_window(project):
    evidence = {"results": "equal", "detail": {"scope": "scattered"}, "window_calls": 20}
    incident = make_incident(project, window_seconds=None, evidence=evidence)
    text = rendering.sentence("opened", "system", event_facts.incident_facts(incident))
    assert "returned the same result 4 times in the last 20 calls" in text


def test_old_settled_rows_go_and_waiting_ones_stay(project, target):
    make_route(project, target)
    note(project)
    routing.route_pending()
    note(project, kind="cycle")
    old = timezone.now() - outbox.KEPT - timedelta(days=1)
    Notification.objects.update(created_at=old, state="delivered")
    AlertEvent.objects.update(at=old)
    outbox.trim()
    assert Notification.objects.count() == 0
    assert list(AlertEvent.objects.values_list("state", flat=True)) == ["pending"]
