"""The past of the demo, played through detection."""

from collections import Counter
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from detection.models import (
    AlertEvent,
    Approval,
    ApprovalState,
    CallCount,
    Event,
    Incident,
    Loop,
    LoopActivity,
    Project,
    Session,
)  # fmt: skip
from detection.services.demo.history import DAYS, OTHER_SLUG, play_history
from detection.services.maintenance.first_start import first_start


@pytest.fixture
def played(transactional_db):
    first_start()
    assert play_history() > 200
    return Project.objects.get(slug="default"), Project.objects.get(slug=OTHER_SLUG)


def test_two_weeks_of_runs_show_what_each_page_is_for(played, capsys):
    first, other = played
    sessions = [*Session.objects.all()]
    assert {one.project_id for one in sessions} == {first.pk, other.pk}
    assert all(one.is_demo and one.ended_at and one.evaluated_seq == one.last_seq for one in sessions)
    assert len({one.agent for one in sessions}) >= 6
    assert {one.reach for one in sessions} == {"can_stop", "can_block", "watch_only"}
    now = timezone.now()
    assert all(
        now - timedelta(days=DAYS, hours=1) < one.started_at <= one.last_event_at < now for one in sessions
    )
    assert len({one.started_at.date() for one in sessions}) >= DAYS - 2
    assert len({kind for row in Incident.objects.all() for kind in row.kinds}) >= 6
    assert {"warn", "block", "stop", "hold"} <= {row.decision for row in Incident.objects.all()}
    assert Counter(row.state for row in Approval.objects.all()).keys() >= {ApprovalState.DECIDED}
    assert {"true_loop", "false_alarm"} <= {row.label for row in Loop.objects.all()}
    assert LoopActivity.objects.filter(action="later").exists()
    assert sum(one.cost_usd for one in sessions) > 10
    counted = sum(CallCount.objects.values_list("checks", flat=True))
    assert counted == Event.objects.filter(type="call").count() == sum(one.call_count for one in sessions)


def test_nobody_is_alerted_of_the_past_and_it_is_played_once(played, capsys):
    assert not AlertEvent.objects.filter(type__in=("opened", "escalated", "ended")).exists()
    before = Session.objects.count()
    call_command("demo_history")
    assert Session.objects.count() == before


def test_a_healthy_run_of_the_past_is_not_blocked(played):
    healthy = Session.objects.filter(external_id__contains="/fix-tests-")
    assert healthy.exists()
    assert not healthy.exclude(blocked_count=0).exists()
    assert set(healthy.values_list("outcome", flat=True)) == {"completed"}
