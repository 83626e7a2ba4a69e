"""A preview tells what routing then does with the same events."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from detection.models import AlertEvent, Incident, Loop, Notification
from detection.services.alerting import reminders, routing, silences
from detection.services.alerting.route_preview import preview_route
from detection.services.incidents import loop_triage
from tests.support.alerts import ANA, make_incident, make_route, make_webhook, note_event

pytestmark = pytest.mark.django_db
ROUTES = (
    {"group_by": ["session"], "event_types": []},
    {"group_by": ["tool"], "event_types": ["opened"]},
    {"group_by": [], "event_types": ["opened", "ended"], "agents": ["tri*"]},
    {"group_by": ["session", "loop"], "severities": ["critical"]},
    {"group_by": ["session"], "tools": ["search_*"], "position": 5},
)


def record(project):
    for number in range(24):
        incident = make_incident(
            project, session_name=f"s-{number % 5}", calls_digest=f"loop-{number}", tool=("search_web", "read_file")[number % 2],
            agent=("triage", "writer", "triage-2")[number % 3], decision=("warn", "block", "stop")[number % 3],
            is_demo=number == 7,
        )  # fmt: skip
        for change in ("opened", "ended")[: 1 + number % 2]:
            note_event(incident, change)


def route_all():
    while routing.route_pending():
        pass


@pytest.mark.parametrize("number", range(len(ROUTES)))
def test_it_counts_the_notifications_that_routing_makes(project, receiver, number):
    values: dict[str, Any] = {"group_wait_seconds": 60, **ROUTES[number]}
    hook, other = make_webhook(project, receiver), make_webhook(project, receiver, "other")
    make_route(project, other, hook, name="first", tools=["read_*"], position=1, continue_matching=True)
    make_route(project, other, name="last", position=3)
    record(project)
    before = preview_route(project.pk, destinations=[hook.public_id], **values)
    assert not Notification.objects.exists()
    row = make_route(project, hook, name="mine", **values)
    route_all()
    made = Notification.objects.filter(route_name="mine")
    assert before.notifications == made.count()
    assert before.alerts == AlertEvent.objects.filter(items__notification__in=made).count()
    # Saved, it is previewed in its own place.
    again = preview_route(project.pk, destinations=[hook.public_id], public_id=row.public_id, **values)
    assert (again.notifications, again.alerts) == (before.notifications, before.alerts)


def test_silenced_and_older_alerts_are_not_counted(project, receiver):
    hook = make_webhook(project, receiver)
    ends_at = timezone.now() + timedelta(hours=1)
    silences.create_silence(project.pk, ANA, reason="x", ends_at=ends_at, tools=["read_*"])
    record(project)
    AlertEvent.objects.filter(facts__session="s-0").update(at=timezone.now() - timedelta(hours=25))
    found = preview_route(project.pk, destinations=[hook.public_id], event_types=["opened"])
    sent = AlertEvent.objects.exclude(facts__session="s-0").filter(type="opened", facts__is_demo=False)
    assert found.alerts == sent.filter(facts__tool="search_web").count()
    assert found.silenced == sent.filter(facts__tool="read_file").count()


def test_alerts_that_earlier_routes_send_are_counted_apart(project, receiver):
    hook, other = make_webhook(project, receiver), make_webhook(project, receiver, "other")
    first = make_route(project, other, name="first", tools=["read_*"], position=1)
    record(project)
    counts = AlertEvent.objects.filter(type="opened", facts__is_demo=False)
    reads = counts.filter(facts__tool="read_file").count()

    def previewed(**values):
        return preview_route(
            project.pk, destinations=[hook.public_id], event_types=["opened"], position=2, **values
        )

    found = previewed()
    assert (found.alerts, found.taken) == (counts.count() - reads, reads)
    found = previewed(tools=["read_*"])
    assert (found.notifications, found.taken) == (0, reads)
    first.continue_matching = True
    first.save()
    assert (previewed().alerts, previewed().taken) == (counts.count(), 0)
    # A destination gets an event once.
    first.send_to([hook])
    assert (previewed().alerts, previewed().taken) == (counts.count() - reads, reads)


def opens(project, number):
    """Open an incident of one loop in a session of its own."""
    make_incident(
        project, agent="alpha-1", session_name=f"x{number}", calls_digest=f"l{number}", ended_at=None, opened_at=timezone.now(), last_seen_at=timezone.now(),
    )  # fmt: skip
    note_event(Incident.objects.latest("pk"), "opened")


def mute_until_worse(project):
    loop = Loop.objects.get(project=project)
    loop_triage.later(project.pk, loop.public_id, ANA, until=None, until_worse=True)


def previewed(project, hook, route=None):
    found = preview_route(
        project.pk, destinations=[hook.public_id], public_id=route and route.public_id, agents=["alpha*"],
        event_types=["opened"], group_wait_seconds=0,
    )  # fmt: skip
    return [event.facts["session"] for one in reversed(found.listed) for event in one.events], found.silenced


def sent():
    return [row.items.get().event.facts["session"] for row in Notification.objects.order_by("pk")]


def test_the_alert_that_ends_a_mute_is_sent_and_those_before_it_are_silenced(project, receiver):
    hook = make_webhook(project, receiver)
    route = make_route(project, hook, agents=["alpha*"], event_types=["opened"])
    for number in range(4):
        opens(project, number)
        route_all()
        if not number:
            mute_until_worse(project)
    assert sent() == ["x0", "x2", "x3"]
    assert previewed(project, hook, route) == (sent(), 1)
    reminders.catch_up()
    route_all()
    assert sent() == ["x0", "x2", "x3", "x1"]
    assert previewed(project, hook, route) == (sent(), 1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_alerts_that_wait_for_routing_are_silenced_as_routing_then_does(
    project, receiver, number, django_assert_max_num_queries
):
    hook = make_webhook(project, receiver)
    opens(project, 0)
    route_all()
    mute_until_worse(project)
    for later in range(1, number + 1):
        opens(project, later)
    with django_assert_max_num_queries(8):
        before = previewed(project, hook)
    route_all()
    assert before == previewed(project, hook)
    assert before[1] == AlertEvent.objects.filter(state="silenced").count() == (number == 1)
