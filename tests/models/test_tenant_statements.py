"""The checker of statements knows which ones name the project of the rows that they touch."""

from typing import Any

import pytest
from django.db import connection

from detection.models import Incident, IncidentActivity, Loop, Project, Session
from detection.models.tenants import tenant_tables
from detection.services.events import event_records
from tests.support import statement_checks
from tests.support.tenant_statements import unnamed_tables

TENANTS = frozenset(("fish", "boat", "net"))

NAMED = """
SELECT * FROM lake WHERE id = %s
SELECT * FROM fish WHERE project_id = %s AND id = %s
SELECT * FROM fish f WHERE f.project_id = %(project)s::bigint
SELECT * FROM fish WHERE project_id IN (%s, %s)
SELECT * FROM fish WHERE project_id = ANY(%s)
SELECT * FROM fish JOIN boat b ON (fish.boat_id = b.id AND (b.project_id = (fish.project_id))) WHERE b.project_id = %s
SELECT * FROM fish LEFT JOIN boat USING (project_id, boat_id) WHERE fish.project_id = %s
SELECT * FROM fish f, boat b, net n WHERE f.project_id = b.project_id AND b.project_id = n.project_id AND n.project_id = 1
SELECT * FROM fish WHERE (project_id = %s AND a) OR (b AND project_id = %s)
SELECT * FROM fish WHERE (project_id, a) = (%s, %s)
SELECT * FROM fish f JOIN detection_project p ON p.id = f.project_id WHERE p.slug = %s
SELECT * FROM detection_project p CROSS JOIN LATERAL (SELECT * FROM fish f WHERE f.project_id = p.id LIMIT 1) x
SELECT * FROM fish f WHERE project_id = %s AND EXISTS (SELECT FROM boat b WHERE b.project_id = f.project_id)
WITH day AS (SELECT * FROM unnest(%s::int[]) AS s (project_id)) SELECT * FROM fish f JOIN day s ON f.project_id = s.project_id
WITH fish AS (SELECT 1 AS id) SELECT * FROM fish
SELECT * FROM fish WHERE project_id = %s UNION ALL SELECT * FROM boat WHERE project_id = %s
INSERT INTO fish (project_id, a) VALUES (%s, %s) ON CONFLICT DO NOTHING
INSERT INTO fish (project_id, a) SELECT project_id, b FROM boat WHERE project_id = %s
UPDATE fish f SET a = 'x%%' FROM unnest(%s::int[]) AS v (id) WHERE f.project_id = %s AND f.id = v.id
UPDATE fish SET a = b.a FROM boat b WHERE b.project_id = fish.project_id AND fish.project_id = %s
DELETE FROM fish WHERE project_id = %s AND seq <= %s
COPY fish (project_id, a) FROM STDIN
LOCK TABLE fish IN SHARE MODE
"""
UNNAMED = """
fish: SELECT * FROM fish WHERE id = %s FOR UPDATE
fish: SELECT * FROM fish WHERE project_id > %s
fish: SELECT * FROM fish WHERE NOT project_id = %s
fish: SELECT * FROM fish WHERE project_id = %s OR a
boat: SELECT * FROM fish JOIN boat b ON fish.boat_id = b.id WHERE fish.project_id = %s
boat fish: SELECT * FROM fish f JOIN boat b ON b.project_id = f.project_id WHERE f.id = %s
fish: SELECT * FROM fish f JOIN detection_project p ON p.id = f.project_id WHERE f.id = %s
boat: SELECT * FROM fish WHERE project_id = %s AND EXISTS (SELECT FROM boat b WHERE b.id = fish.boat_id)
boat: SELECT * FROM fish WHERE project_id = %s AND boat_id IN (SELECT id FROM boat)
fish: SELECT * FROM fish WHERE id IN (SELECT fish_id FROM boat WHERE project_id = %s)
boat: SELECT * FROM fish WHERE project_id = %s UNION ALL SELECT * FROM boat
boat: WITH fish AS (SELECT * FROM boat) SELECT * FROM fish
fish: INSERT INTO fish (a) VALUES (%s)
boat: INSERT INTO fish (project_id) SELECT project_id FROM boat
fish: UPDATE fish SET a = 1 WHERE id = %s
fish: UPDATE fish f SET a = 1 FROM boat b WHERE b.project_id = %s AND b.id = f.boat_id
fish: WITH one AS (DELETE FROM fish WHERE id = %s RETURNING a) SELECT * FROM one
fish: COPY fish (a) FROM STDIN
"""


@pytest.mark.parametrize("text", NAMED.strip().splitlines())
def test_a_statement_that_names_the_project_passes(text):
    assert unnamed_tables(text, TENANTS) is None


@pytest.mark.parametrize("line", UNNAMED.strip().splitlines())
def test_a_table_without_its_project_is_found(line):
    tables, text = line.split(": ", 1)
    found = unnamed_tables(text, TENANTS)
    assert found is not None
    assert found[1] == tables


def test_the_events_are_copied_with_their_project():
    # The copies of psycopg pass no wrapper of Django.
    assert unnamed_tables(event_records._COPY, tenant_tables()) is None


def test_a_statement_of_the_product_is_listed_by_its_place_and_one_of_a_test_is_not():
    text = "SELECT * FROM detection_session WHERE id = %s"
    compiled = compile(
        "def search(text):\n    return [entry(one) for one in [text]]",
        f"{statement_checks._ROOT}/detection/sea.py",
        "exec",
    )
    place: dict[str, Any] = {"entry": statement_checks.entry}
    exec(compiled, place)
    assert place["search"](text) == ["detection/sea.py search SELECT detection_session"]
    assert place["search"](f"{text} AND project_id = %s") == [None]
    assert statement_checks.entry(text) is None


@pytest.mark.django_db
def test_what_django_sends_for_a_row_names_its_project():
    project = Project.objects.create(slug="sea")
    session = Session.objects.create(project=project, external_id="s")
    loop = Loop.objects.create(project=project, key="k", kind="repeat", tool="t")
    incident = Incident.objects.create(
        project=project, loop=loop, session=session, session_name="s", calls_digest="l", kind="repeat", tool="t", count=4, limit=4,
        decision="block", first_seq=1, last_seq=8,
    )  # fmt: skip
    sent = []

    def keep(execute, text, parameters, many, context):
        sent.append(text)
        return execute(text, parameters, many, context)

    with connection.execute_wrapper(keep):
        activity = IncidentActivity.objects.create(incident=incident, actor="ana", action="done")
        assert activity.project_id == project.pk
        activity = IncidentActivity.objects.select_related("incident__session").get(project=project)
        incident.agent = "x"
        incident.save()
        incident.refresh_from_db()
        assert incident.session == session
        assert [*incident.activity.all()] == [activity]
        assert [*Incident.objects.filter(session=session)] == [incident]
        assert [*Incident.objects.filter(session__in=[session]).prefetch_related("activity")] == [incident]
        assert [*Session.objects.filter(project=project).exclude(incidents__kind="budget")] == [session]
        session.delete()
        assert not [*Incident.objects.filter(session=session)]
        incident.refresh_from_db()
        assert incident.session_id is None
        incident.delete()
    assert not IncidentActivity.objects.exists()
    assert [unnamed_tables(text, tenant_tables()) for text in sent] == [None] * len(sent)
