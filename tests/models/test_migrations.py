"""Migrations keep the rows of an older version, and come to the same tables as the squashed one of a first start.

All tests of this file share one database of an older version, which is migrated once. In the suite, an installation on
old data (tests/supervisor/test_database_rights.py) stands for them.
"""

import contextlib
import re
from datetime import UTC, datetime

import pytest
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from detection.models import AlertEvent
from detection.services.alerting import rendering

pytestmark = pytest.mark.long
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
QUESTION = {
    "id": "qst_1", "state": "answered", "summary": "Called 3 times", "deadline": NOW.isoformat(), "unattended": "block",
    "decision": "allow", "choice": "raise", "raised_by": 5, "reason": "answered", "answered_by": "ana",
}  # fmt: skip
TABLES = """
SELECT 'column', table_name, column_name, udt_name, column_default, is_nullable, character_maximum_length::text,
    numeric_precision::text, numeric_scale::text, identity_generation
FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT 'storage', c.relname, a.attname, a.attstorage::text, c.reloptions::text, '', '', '', '', ''
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', tablename, regexp_replace(indexdef, 'INDEX \\w+', 'INDEX'), '', '', '', '', '', '', ''
FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, pg_get_constraintdef(oid), condeferrable::text, condeferred::text, '', '', '', '', ''
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'function', proname, prosrc, prosecdef::text, proconfig::text, '', '', '', '', ''
FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND probin IS NULL
UNION ALL
SELECT 'trigger', tgname, pg_get_triggerdef(oid), '', '', '', '', '', '', '' FROM pg_trigger WHERE NOT tgisinternal
"""
"""What tables are made of, in any order of their columns. Indexes and constraints of renamed models keep their names."""


def add_old_rows(apps):
    """Add what version 0008 stored."""

    def make(model, **values):
        return apps.get_model("detection", model).objects.using("old").create(**values)

    project = make("Project", slug="old", name="Old")
    times = {"started_at": NOW, "last_event_at": NOW}
    make(
        "Session",
        project=project,
        external_id="s-2",
        state="running",
        stopped_at=NOW,
        stopped_by="ana",
        **times,
    )
    parked = [{"seq": 1, "error": "call: KeyError: 'lost'"}, {"seq": 9, "error": "of an event that is gone"}]
    session = make("Session", project=project, external_id="s-1", parked=parked, **times)
    make(
        "Question", public_id="qst_1", project=project, session=session, state="answered", reason="answered",
        decision="allow", asked_at=NOW, answered_at=NOW, deadline=NOW, seq=1, call_id="c-1", call_key="k",
        tool="search", loop_id="l", kind="repeat", count=3, limit=3, summary="x",
    )  # fmt: skip
    connections["old"].cursor().execute(
        "INSERT INTO detection_event (session_id, seq, type, call_id, decision, verdict, received_at)"
        " VALUES (%s, 1, 'call', 'c-1', 'hold', %s, now())",
        [session.pk, '{"message": "m", "question": "qst_1"}'],
    )
    make(
        "AlertTransition", project=project, transition="question.closed", actor="ana", at=NOW,
        facts={"tool": "search", "agent": "", "session": "s-1", "question": QUESTION},
    )  # fmt: skip


def executor():
    """Return one that applies every migration by itself, as an installation of an older version does."""
    one = MigrationExecutor(connections["old"])
    one.loader = MigrationLoader(connections["old"], replace_migrations=False)
    return one


@pytest.fixture(scope="module")
def old(django_db_setup, django_db_blocker):
    """The connection to a database of an older version that was migrated."""
    name = f"{connection.settings_dict['NAME']}_old"
    with django_db_blocker.unblock(), contextlib.ExitStack() as stack:
        connection.cursor().execute(f"DROP DATABASE IF EXISTS {name}")
        connection.cursor().execute(f"CREATE DATABASE {name}")
        stack.callback(lambda: connection.cursor().execute(f"DROP DATABASE {name}"))
        connections.settings["old"] = {**connection.settings_dict, "NAME": name}
        stack.callback(connections.settings.pop, "old")
        stack.callback(connections["old"].close)
        first = executor()
        add_old_rows(first.migrate([("detection", "0008_rare_sessions")]).apps)
        loader = executor().loader
        executor().migrate(
            [leaf for leaf in loader.graph.leaf_nodes() if not loader.disk_migrations[leaf].replaces]
        )
        yield connections["old"]


def fetch(old, query):
    with old.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def test_a_stopped_session_that_was_shown_as_running_is_migrated(old):
    found = fetch(old, "SELECT state, stopped_by_kind FROM detection_session WHERE external_id = 's-2'")
    assert found == [("stopped", "person")]


def test_an_answered_question_is_migrated_to_a_decided_approval_of_its_call(old):
    assert fetch(old, "SELECT state, reason FROM detection_approval") == [("decided", "decided")]
    found = fetch(old, "SELECT verdict->>'message', verdict->>'approval' FROM detection_event")
    assert found == [("m", "qst_1")]


def test_an_alert_about_an_answered_question_is_migrated_to_one_about_an_approval(old):
    event = AlertEvent.objects.using("old").get()
    approval = {
        name: QUESTION[name] for name in ("id", "summary", "deadline", "unattended", "decision", "choice")
    }
    assert event.facts == {
        "tool": "search", "agent": "", "session": "s-1",
        "approval": approval | {"state": "decided", "raise_by": 5, "reason": "decided", "decided_by": "ana"},
    }  # fmt: skip
    assert "search" in rendering.sentence(event.type, event.actor, event.facts)


@pytest.fixture(scope="module")
def tables(old, django_db_blocker):
    """What the tables of a first start and those of the older version are made of."""
    with django_db_blocker.unblock():
        return tuple(set(fetch(one, TABLES)) for one in (connection, old))


@pytest.mark.django_db  # which makes the suite's own database, if no other test does
def test_the_squashed_migration_of_a_first_start_makes_the_same_tables(tables):
    squashed, migrated = tables
    # The suite's own database may have gained or lost partitions meanwhile.
    differences = {row for row in squashed ^ migrated if not re.match(r"detection_event_\d+", row[1])}
    assert differences == set()


def test_an_installation_of_an_older_version_does_not_apply_the_squashed_migration(old):
    assert MigrationExecutor(old).migration_plan(MigrationLoader(old).graph.leaf_nodes()) == []


def test_errors_noted_on_a_session_become_quarantined_events(old):
    found = fetch(
        old,
        "SELECT p.slug, s.external_id, q.seq, q.type, q.error FROM detection_quarantinedevent q"
        " JOIN detection_session s ON s.id = q.session_id JOIN detection_project p ON p.id = q.project_id ORDER BY q.seq",
    )
    assert found == [
        ("old", "s-1", 1, "call", "call: KeyError: 'lost'"),
        ("old", "s-1", 9, "", "of an event that is gone"),
    ]
