import math
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from detection.models import AuditEntry, Event, EventKey, Incident, Session
from detection.services.retention import removal, retention
from detection.services.sessions import actions
from detection.services.sessions.evaluation import evaluate
from detection.services.storage.disk_space import disk_monitor
from detection.services.tracking.tracker import IncidentTracker
from tests.support.agents import OPERATOR, Agent
from tests.support.threads import in_thread


@pytest.mark.promise("REL-31")
def test_old_sessions_go_with_their_calls_and_incidents_keep_their_evidence(project, agent):
    for _ in range(4):
        agent.asks()
    agent.posts(agent.call(id="evt"))
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=31))
    retention.housekeeping()

    assert not Session.objects.exists()
    assert not Event.objects.filter(call_id__startswith="call_").exists()
    assert not EventKey.objects.exists()
    incident = Incident.objects.get()
    assert incident.session is None
    assert len(incident.evidence["calls"]) == 4


@pytest.mark.promise("REL-31")
def test_sessions_of_many_events_go_in_several_transactions(agent, principal, monkeypatch):
    monkeypatch.setattr(removal, "SLICE_EVENTS", 3)
    monkeypatch.setattr(removal, "SLICE_BYTES", 5 * 8192)
    for number in range(3):
        long = Agent(principal, f"long-{number}")
        long.posts(*[long.call() for _ in range(10)])
    agent.asks()
    Session.objects.exclude(external_id=agent.session).update(
        last_event_at=timezone.now() - timedelta(days=31)
    )
    kept = Event.objects.filter(session__external_id=agent.session).count()
    retention.housekeeping()

    assert [session.external_id for session in Session.objects.all()] == [agent.session]
    assert Event.objects.count() == kept > 0


def test_a_loop_that_cannot_be_ended_keeps_housekeeping_from_nothing_else(agent, principal, monkeypatch):
    broken, whole = agent, Agent(principal, "s-whole")
    for one in (broken, whole):
        for _ in range(4):
            one.asks()
    old = Agent(principal, "s-old")
    old.posts(old.call())
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=2))
    Session.objects.filter(external_id="s-old").update(last_event_at=timezone.now() - timedelta(days=31))
    abandon = IncidentTracker.abandon

    def abandoned(incidents, at):
        if incidents.session.external_id == broken.session:
            raise ZeroDivisionError
        abandon(incidents, at)

    monkeypatch.setattr(IncidentTracker, "abandon", abandoned)
    retention.housekeeping()
    assert not Session.objects.filter(external_id="s-old").exists()
    ended = Incident.objects.exclude(ended_at=None).values_list("session_name", flat=True)
    assert [*ended] == ["s-whole"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_a_locked_session_keeps_its_events(agent):
    agent.posts(agent.call())
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=31))
    with transaction.atomic():
        Session.objects.select_for_update().get(project_id=agent.principal.project_id)
        in_thread(retention.housekeeping).result()
        assert Event.objects.count() == 1
    retention.housekeeping()
    assert not Event.objects.exists()


def test_on_a_disk_that_is_nearly_full_the_log_is_recycled_before_each_part(agent, settings, tmp_path):
    agent.posts(agent.call())
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=31))
    place = "SELECT redo_lsn FROM pg_control_checkpoint()"
    with connection.cursor() as cursor:
        before = cursor.execute(place).fetchone()
        settings.DATABASE_FOLDER, settings.MIN_FREE_SHARE, settings.MIN_FREE_BYTES = (
            str(tmp_path),
            1.0,
            math.inf,
        )
        retention.housekeeping()
        settings.DATABASE_FOLDER = ""
        disk_monitor.expire()
        assert cursor.execute(place).fetchone() != before
    assert not Event.objects.exists()


def test_old_event_ids_are_forgotten_in_several_transactions(agent, monkeypatch):
    monkeypatch.setattr(retention, "BATCH_EVENT_IDS", 2)
    agent.posts(*[agent.call(id=f"evt-{number}") for number in range(5)])
    EventKey.objects.update(received_at=timezone.now() - timedelta(days=8))
    agent.posts(agent.call(id="recent"))
    retention.housekeeping()
    assert EventKey.objects.count() == 1
    assert Event.objects.count() == 6


def test_recent_sessions_stay(agent):
    agent.asks()
    retention.housekeeping()
    assert Session.objects.exists()


@pytest.mark.promise("REL-33")
def test_the_incident_of_a_session_that_nobody_hears_of_ends(agent):
    agent.posts(*[agent.call() for _ in range(4)])
    evaluate(Session.objects.get().key)
    assert Session.objects.get().state == "looping"
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.housekeeping()

    assert Incident.objects.get().ended_at is not None
    assert Session.objects.get().state == "running"


def test_a_stopped_session_stays_stopped_when_its_loop_is_abandoned(agent):
    for _ in range(8):
        agent.asks()
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.housekeeping()

    assert Incident.objects.get().ended_at is not None
    assert Session.objects.get().state == "stopped"


@pytest.mark.servers
def test_partitions_are_made_ahead_and_dropped_when_long_empty(db):
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE detection_event_700 PARTITION OF detection_event FOR VALUES FROM (%s) TO (%s)",
            [700 << 32, 707 << 32],
        )
        assert retention.drop_empty_partitions() == ["detection_event_700"]
        cursor.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'detection_event'::regclass")
        assert cursor.fetchone()[0] >= 10


def test_what_the_demo_made_is_removed_in_one_go_and_nothing_else(project, principal):
    from dataclasses import replace

    Agent(replace(principal, is_demo=True), "demo").asks()
    Agent(principal, "real").asks()

    assert removal.remove_demo(project.pk, OPERATOR) == 1
    assert [session.external_id for session in Session.objects.all()] == ["real"]


def test_audit_entries_can_be_neither_changed_nor_deleted(agent, project):
    agent.asks()
    actions.stop(project.pk, "s-1", OPERATOR)
    for statement in ("UPDATE detection_auditentry SET actor = 'x'", "DELETE FROM detection_auditentry"):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    assert AuditEntry.objects.filter(action="session.stop", actor="ana").exists()
