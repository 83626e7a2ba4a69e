"""Migrations keep the rows of an older version."""

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from detection.models import AlertEvent
from detection.services.alerting import rendering

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def before(transactional_db):
    """Migrate the database back, and forward again in the end."""

    def go_back(name):
        executor = MigrationExecutor(connection)
        executor.migrate([("detection", name)])
        return executor.loader.project_state([("detection", name)]).apps

    yield go_back
    go_forward()


def go_forward():
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


def test_a_stopped_session_that_was_shown_as_running_is_migrated(before):
    apps = before("0010_overrides")
    project = apps.get_model("detection", "Project").objects.create(slug="old", name="Old")
    sessions = apps.get_model("detection", "Session").objects
    old = sessions.create(
        project=project, external_id="s-1", state="running", stopped_at=NOW, stopped_by="ana",
        started_at=NOW, last_event_at=NOW,
    )  # fmt: skip
    go_forward()
    with connection.cursor() as cursor:
        cursor.execute("SELECT state, stopped_by_kind FROM detection_session WHERE id = %s", [old.pk])
        assert cursor.fetchone() == ("stopped", "person")


def test_an_answered_question_is_migrated_to_a_decided_approval_of_its_call(before):
    apps = before("0008_rare_sessions")
    project = apps.get_model("detection", "Project").objects.create(slug="old", name="Old")
    session = apps.get_model("detection", "Session").objects.create(
        project=project, external_id="s-1", started_at=NOW, last_event_at=NOW
    )
    apps.get_model("detection", "Question").objects.create(
        public_id="qst_1", project=project, session=session, state="answered", reason="answered",
        decision="allow", asked_at=NOW, answered_at=NOW, deadline=NOW, seq=1, call_id="c-1", call_key="k",
        tool="search", loop_id="l", kind="repeat", count=3, limit=3, summary="x",
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO detection_event (session_id, seq, type, call_id, decision, verdict, received_at)"
            " VALUES (%s, 1, 'call', 'c-1', 'hold', %s, now())",
            [session.pk, '{"message": "m", "question": "qst_1"}'],
        )
    go_forward()
    with connection.cursor() as cursor:
        cursor.execute("SELECT state, reason FROM detection_approval")
        assert cursor.fetchone() == ("decided", "decided")
        cursor.execute("SELECT verdict->>'message', verdict->>'approval' FROM detection_event")
        assert cursor.fetchone() == ("m", "qst_1")


def test_an_alert_about_an_answered_question_is_migrated_to_one_about_an_approval(before):
    apps = before("0008_rare_sessions")
    project = apps.get_model("detection", "Project").objects.create(slug="old", name="Old")
    question = {
        "id": "qst_1", "state": "answered", "summary": "Called 3 times", "deadline": NOW.isoformat(), "unattended": "block",
        "decision": "allow", "choice": "raise", "raised_by": 5, "reason": "answered", "answered_by": "ana",
    }  # fmt: skip
    apps.get_model("detection", "AlertTransition").objects.create(
        project=project, transition="question.closed", actor="ana", at=NOW,
        facts={"tool": "search", "agent": "", "session": "s-1", "question": question},
    )  # fmt: skip
    go_forward()
    event = AlertEvent.objects.get()
    approval = {
        name: question[name] for name in ("id", "summary", "deadline", "unattended", "decision", "choice")
    }
    assert event.facts == {
        "tool": "search", "agent": "", "session": "s-1",
        "approval": approval | {"state": "decided", "raise_by": 5, "reason": "decided", "decided_by": "ana"},
    }  # fmt: skip
    assert "search" in rendering.sentence(event.type, event.actor, event.facts)
