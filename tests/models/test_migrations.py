"""Migrations keep the rows of an older version."""

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

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
