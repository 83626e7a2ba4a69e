"""The cursor of what changed: nothing that is committed later is before it."""

import time

import psycopg
import pytest
from django.db import connection

from detection.models import Session
from detection.selectors import changes
from detection.selectors.changes import horizon, snapshot, touched_projects
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def other():
    parameters = connection.get_connection_params()
    del parameters["cursor_factory"]
    with psycopg.connect(**parameters) as one:
        yield one


def written():
    return Session.objects.order_by("changed_xid").last().changed_xid


def horizon_after(number):
    """Wait until the cursor is beyond a transaction: those of other tests on this server hold it back, too."""
    deadline = time.monotonic() + 60
    while (found := horizon()) <= number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_the_cursor_waits_for_the_oldest_transaction(servers_of_both_kinds, other):
    (running,) = other.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()")
    seen = snapshot()
    assert horizon() <= running
    other.commit()
    assert horizon_after(running) > running
    assert snapshot() != seen


def test_a_transaction_that_begins_while_the_cursor_is_read_sets_it_not_back(
    other, server_with_nodes, monkeypatch
):
    (running,) = other.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    before = running - 1
    monkeypatch.setattr(changes, "_SNAPSHOT", f"SELECT '{before}:{before}:'")
    assert 0 < horizon() <= before


def test_projects_are_touched_since_a_cursor_the_longest_waiting_first(servers_of_both_kinds):
    first, second = make_project(), make_project()
    Session.objects.create(project=second, external_id="a")
    middle = horizon_after(written())
    Session.objects.create(project=first, external_id="b")
    assert touched_projects(0) == [second.pk, first.pk]
    assert touched_projects(middle) == [first.pk]
    assert touched_projects(horizon_after(written())) == []
