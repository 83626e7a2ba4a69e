"""Loops that are put off: they end by their time or when the loop gets worse, never otherwise, and hide nothing silently."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.models import AlertEvent, AlertSilence, Incident, Loop, LoopActivity
from detection.selectors import loops as selector
from detection.services.alerting import postponing, reminders, routing
from detection.services.incidents import loop_triage
from tests.support.alerts import ANA, make_incident, make_route, make_webhook, note_event
from tests.support.past import move_back

HOURS = 7
"""A step of time. No sum of steps is a day or a time at which a mute ends, so nothing is decided by microseconds."""
steps = st.one_of(
    st.just(("opens",)),
    st.just(("passes",)),
    st.tuples(st.just("mutes"), st.sampled_from([None, 10, 30, 100]), st.booleans()),
    st.just(("unmutes",)),
    st.just(("sweeps",)),
)


class Twin:
    """The rules in the plainest form: remembers every moment and decides by counting them all again."""

    def __init__(self):
        self.now, self.opened, self.mute = 0.0, [], None

    def apply(self, name, *arguments):
        self.now += 1e-6
        getattr(self, name)(*arguments)
        if self.mute and self.mute["until"] <= self.now:
            self.mute = None

    def opens(self):
        self.opened.append(self.now)

    def passes(self):
        self.now += HOURS

    def mutes(self, hours, worse):
        if hours is not None or worse:
            before = sum(self.now - 24 < one <= self.now for one in self.opened)
            until = self.now + (24 * 90 if hours is None else hours)
            self.mute = {"at": self.now, "until": until, "baseline": max(1, before) if worse else None}

    def unmutes(self):
        self.mute = None

    def sweeps(self):
        if self.mute and self.mute["baseline"] is not None:
            since = max(self.mute["at"], self.now - 24)
            if sum(one > since for one in self.opened) > self.mute["baseline"]:
                self.mute = None


class Product:
    """The same steps through the services."""

    def __init__(self, project):
        self.project, self.numbers = project, itertools.count()
        self.opens(status="ended", opened_at=timezone.now() - timedelta(days=400))
        Incident.objects.update(last_seen_at=F("opened_at"))
        self.loop = Loop.objects.get(project=project)

    def opens(self, **fields):
        now = timezone.now()
        values = {
            "opened_at": now,
            "last_seen_at": now,
        }
        make_incident(self.project, **{**values, **fields})

    def passes(self):
        span = timedelta(hours=HOURS)
        move_back(AlertSilence.objects, span, "starts_at", "ends_at")
        move_back(Incident.objects, span, "opened_at", "last_seen_at")

    def mutes(self, hours, worse):
        if hours is not None or worse:
            until = None if hours is None else timezone.now() + timedelta(hours=hours)
            loop_triage.later(self.project.pk, self.loop.public_id, ANA, until=until, until_worse=worse)

    def unmutes(self):
        loop_triage.reopen(self.project.pk, self.loop.public_id, ANA)

    def sweeps(self):
        postponing.wake_due()

    @property
    def mute(self):
        return selector.row_of(self.loop).later


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=14))
def test_a_mute_ends_exactly_when_its_rules_say_so(project, history):
    AlertSilence.objects.all().delete()
    LoopActivity.objects.all().delete()
    Incident.objects.all().delete()
    product, twin = Product(project), Twin()
    for name, *arguments in history:
        getattr(product, name)(*arguments)
        twin.apply(name, *arguments)
        found = product.mute
        assert (found is not None) == (twin.mute is not None)
        if found and twin.mute:
            assert found.baseline == twin.mute["baseline"]
            assert found.incidents == sum(one > twin.mute["at"] for one in twin.opened)
    row = selector.row_of(product.loop)
    assert row.is_later_but_firing == bool(twin.mute and any(one > twin.mute["at"] for one in twin.opened))


@pytest.fixture
def muted(project):
    """A loop that had two incidents today, muted until it gets worse."""
    product = Product(project)
    product.opens()
    product.opens()
    product.mutes(None, worse=True)
    return product


def fires(product, **fields):
    product.opens(ended_at=None, calls_digest=f"l{next(product.numbers)}", **fields)
    incident = Incident.objects.latest("pk")
    note_event(incident, "opened")
    routing.route_pending()
    return AlertEvent.objects.latest("pk").state


def test_a_muted_loop_notifies_no_one_until_the_incident_that_makes_it_worse(project, receiver, muted):
    make_route(project, make_webhook(project, receiver))
    assert [fires(muted) for _ in range(4)] == ["silenced", "silenced", "routed", "routed"]
    assert muted.loop.activity.latest("pk").action == "came_back"
    assert selector.navigation_counts(project.pk).later_but_firing == 0


def test_the_end_of_a_mute_by_its_time_is_noted_and_what_it_hid_is_sent_once(project, receiver, muted):
    make_route(project, make_webhook(project, receiver))
    assert fires(muted) == "silenced"
    assert selector.navigation_counts(project.pk).later_but_firing == 1
    AlertSilence.objects.update(ends_at=timezone.now())
    assert (reminders.catch_up(), reminders.catch_up()) == (1, 0)
    assert muted.loop.activity.latest("pk").note == "the time ran out"


def test_undo_restores_the_mute_that_was_ended_or_replaced(project, muted):
    before = muted.mute
    muted.unmutes()
    loop_triage.undo(project.pk, muted.loop.public_id, ANA)
    assert muted.mute == before
    muted.mutes(10, worse=False)
    assert muted.mute.baseline is None
    loop_triage.undo(project.pk, muted.loop.public_id, ANA)
    assert muted.mute == before
