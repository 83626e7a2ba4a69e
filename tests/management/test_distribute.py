"""`distribute` on a server without Citus, and what it does that needs none. docs/scaling.md says how it is tried on one."""

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection

from detection.models import Incident, Project
from detection.services.storage import distribution
from detection.sql.postgresql.base import DeadlineConnection
from detection.sql.postgresql.schema import TenantSchemaEditor


def connect(options=None):
    parameters = connection.get_connection_params() | {"autocommit": True}
    del parameters["cursor_factory"]
    return DeadlineConnection.connect(**parameters | ({"options": options} if options else {}))


def one(text):
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()[0]


@pytest.fixture
def without_citus(db):
    if one("SELECT count(*) FROM pg_extension WHERE extname = 'citus'"):
        pytest.skip("the tests run on Citus")


@pytest.mark.django_db(transaction=True)
def test_without_citus_it_says_so_and_changes_nothing(without_citus):
    constraints = "SELECT array_agg(conname ORDER BY conname) FROM pg_constraint"
    before = one(constraints), one("SELECT current_setting('statement_timeout')")
    with pytest.raises(CommandError) as raised:
        call_command("distribute", "--yes")
    assert str(raised.value) == "This database has no extension Citus: nothing was changed."
    assert (one(constraints), one("SELECT current_setting('statement_timeout')")) == before


@pytest.fixture
def opened_again(transactional_db):
    yield
    with distribution.entered("default") as was_left_closed:
        if was_left_closed:
            distribution.distribute("default", [], lambda *_: None)


def test_a_closed_database_ends_connections_and_accepts_none_but_its_own(opened_again):
    usual, other = connection.get_connection_params()["options"], connect()
    with distribution.entered("default") as was_left_closed, distribution.closed("default"):
        assert not was_left_closed
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="closed until"):
            connect(usual)
        one("SELECT 1")
    connect().close()


def test_a_database_stays_closed_after_an_error_and_opens_at_the_next_end(opened_again):
    with pytest.raises(ProgrammingError), distribution.entered("default"), distribution.closed("default"):
        one("SELECT no_such_column")
    with pytest.raises(psycopg.OperationalError, match="closed until"):
        connect()
    with distribution.entered("default") as was_left_closed:
        assert was_left_closed
        distribution.distribute("default", [], lambda *_: None)
    connect().close()


def test_rows_are_numbered_on_where_a_table_was_made_anew(opened_again):
    """Citus makes a local table that refers to one on every node anew, with a sequence that begins at 1."""
    first = Project.objects.create(slug="first", name="first")
    one("SELECT setval('detection_project_id_seq', 1, false)")
    with distribution.entered("default"):
        distribution.distribute("default", [], lambda *_: None)
    assert Project.objects.create(slug="next", name="next").pk == first.pk + 1
    one(f"SELECT setval('detection_project_id_seq', {first.pk + 1000})")
    with distribution.entered("default"):
        distribution.distribute("default", [], lambda *_: None)
    assert Project.objects.create(slug="last", name="last").pk == first.pk + 1001


@pytest.mark.django_db
def test_on_nodes_a_deleted_row_takes_no_references_away():
    with connection.schema_editor(collect_sql=True) as editor:
        assert isinstance(editor, TenantSchemaEditor)
        field = Incident._meta.get_field("session")
        assert "ON DELETE SET NULL" in editor.reference(Incident, field)[1]
        editor.is_distributed = True
        assert "ON DELETE" not in editor.reference(Incident, field)[1]
        assert "ON DELETE CASCADE" in editor.reference(Incident, Incident._meta.get_field("loop"))[1]
