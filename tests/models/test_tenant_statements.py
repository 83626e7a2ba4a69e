"""The checker of statements knows which ones a server can run that keeps each project on one node."""

from typing import Any

import pytest
from django.db import connection

from detection.models import Incident, IncidentActivity, Loop, Project, Session
from detection.models.tenants import tenant_tables
from detection.services.events import event_records
from tests.support import statement_checks
from tests.support.tenant_statements import AllNodes, Rejected, read

TENANTS = frozenset(("fish", "boat", "net"))

ONE_NODE = """
SELECT * FROM lake WHERE id = %s
SELECT * FROM fish WHERE project_id = %s AND id = %s FOR UPDATE
SELECT * FROM fish f WHERE f.project_id = %(project)s::bigint
SELECT * FROM fish WHERE project_id IN (%s, %s)
SELECT * FROM fish WHERE project_id = ANY(%s)
SELECT * FROM fish JOIN boat b ON (fish.boat_id = b.id AND (b.project_id = (fish.project_id))) WHERE b.project_id = %s
SELECT * FROM fish LEFT JOIN boat USING (project_id, boat_id) WHERE fish.project_id = %s
SELECT * FROM fish f, boat b, net n WHERE f.project_id = b.project_id AND b.project_id = n.project_id AND n.project_id = 1
SELECT * FROM fish WHERE (project_id = %s AND a) OR (b AND project_id = %s)
SELECT * FROM fish WHERE (project_id, a) = (%s, %s)
SELECT * FROM fish f JOIN detection_project p ON p.id = f.project_id WHERE p.id = %s
SELECT * FROM fish f WHERE project_id = %s AND EXISTS (SELECT FROM boat b WHERE b.project_id = %s AND b.id = f.boat_id)
SELECT * FROM boat b CROSS JOIN LATERAL (SELECT * FROM fish WHERE project_id = %s LIMIT 1) f WHERE b.project_id = %s
SELECT a, GROUPING(a) FROM fish WHERE project_id = %s GROUP BY GROUPING SETS ((a), ())
WITH fish AS (SELECT 1 AS id) SELECT * FROM fish
SELECT * FROM fish WHERE project_id = %s UNION ALL SELECT * FROM boat WHERE project_id = %s
INSERT INTO fish (project_id, a) VALUES (%s, %s) ON CONFLICT DO NOTHING
INSERT INTO fish (project_id, a) SELECT project_id, b FROM boat WHERE project_id = %s
INSERT INTO fish (project_id, name, at) SELECT %s, n, now() FROM unnest(%s::text[]) AS n ON CONFLICT DO NOTHING
INSERT INTO fish (project_id, at) VALUES (%s, now()) ON CONFLICT (project_id) DO UPDATE SET at = excluded.at
UPDATE fish f SET a = 'x%%' FROM unnest(%s::int[]) AS v (id) WHERE f.project_id = %s AND f.id = v.id
UPDATE fish f SET at = now() WHERE f.project_id = %s RETURNING f.xmin::text
UPDATE fish SET a = b.a FROM boat b WHERE b.project_id = fish.project_id AND fish.project_id = %s
DELETE FROM fish WHERE project_id = %s AND seq <= %s
COPY fish (project_id, a) FROM STDIN
LOCK TABLE fish IN SHARE MODE
"""
ALL_NODES = """
fish: SELECT * FROM fish WHERE id = %s
fish: SELECT * FROM fish WHERE project_id > %s
fish: SELECT * FROM fish WHERE NOT project_id = %s
fish: SELECT * FROM fish WHERE project_id = %s OR a
boat fish: SELECT * FROM fish f JOIN boat b ON b.project_id = f.project_id WHERE f.id = %s
fish: SELECT * FROM fish f JOIN detection_project p ON p.id = f.project_id WHERE p.slug = %s
boat fish: SELECT * FROM fish f WHERE a AND EXISTS (SELECT FROM boat b WHERE b.project_id = f.project_id AND b.id = f.b)
boat fish: SELECT * FROM fish WHERE boat_id IN (SELECT id FROM boat)
fish: WITH day AS (SELECT * FROM unnest(%s::int[]) AS s (project_id)) SELECT * FROM fish f JOIN day s ON f.project_id = s.project_id
boat: WITH fish AS (SELECT * FROM boat) SELECT * FROM fish
boat: INSERT INTO fish (project_id) SELECT project_id FROM boat
fish: UPDATE fish SET a = 1 WHERE id = %s
fish: DELETE FROM fish WHERE at < %s
fish: WITH one AS (DELETE FROM fish WHERE id = %s RETURNING a) SELECT * FROM one
"""
REJECTED = """
lock: SELECT * FROM fish WHERE id = %s FOR UPDATE
lock: SELECT * FROM fish WHERE project_id IN (%s, %s) FOR NO KEY UPDATE SKIP LOCKED
joined: SELECT * FROM fish JOIN boat b ON fish.boat_id = b.id WHERE fish.id = %s
joined: UPDATE fish f SET a = 1 FROM boat b, net n WHERE n.project_id = %s AND b.id = f.boat_id
beside a function: INSERT INTO fish (project_id, name) SELECT %s, n FROM unnest(%s::text[]) AS n WHERE NOT EXISTS (SELECT FROM fish WHERE project_id = %s AND name = n)
in ON CONFLICT: INSERT INTO fish (project_id) VALUES (%s) ON CONFLICT (project_id) DO UPDATE SET at = now()
in CASE: UPDATE fish SET at = CASE WHEN a THEN at ELSE now() END WHERE project_id = %s
in CASE: UPDATE fish SET at = coalesce(at, clock_timestamp()) WHERE project_id = %s
in RETURNING: UPDATE fish SET a = 1 WHERE project_id = %s RETURNING pg_current_xact_id()::xid::text
in RETURNING: WITH one AS (DELETE FROM fish WHERE project_id = %s RETURNING CURRENT_TIMESTAMP) SELECT * FROM one
several commands: UPDATE fish SET a = 1 WHERE project_id = 1; DELETE FROM fish WHERE project_id = 1
without values: SET plan_cache_mode = force_generic_plan
trigger: CREATE TRIGGER wet BEFORE UPDATE ON fish FOR EACH ROW EXECUTE FUNCTION dry()
of each project: SELECT * FROM detection_project p CROSS JOIN LATERAL (SELECT * FROM fish f WHERE f.project_id = p.id LIMIT 1) x
by their places: DELETE FROM fish WHERE ctid = ANY(ARRAY(SELECT ctid FROM fish LIMIT %s))
grouping sets: SELECT a, GROUPING(a) FROM fish GROUP BY GROUPING SETS ((a), ())
grouping sets: SELECT a, GROUPING(a) FROM fish WHERE project_id IN (%s, %s) GROUP BY GROUPING SETS ((a), ())
another column: SELECT * FROM fish f WHERE EXISTS (SELECT FROM boat b WHERE b.id = f.boat_id)
another column: SELECT * FROM fish WHERE project_id = %s AND EXISTS (SELECT FROM boat b WHERE b.id = fish.boat_id)
boat: no project: SELECT * FROM fish f WHERE project_id = %s AND EXISTS (SELECT FROM boat b WHERE b.project_id = f.project_id)
boat: no project: SELECT * FROM fish WHERE project_id = %s AND boat_id IN (SELECT id FROM boat)
fish: no project: SELECT * FROM fish WHERE id IN (SELECT fish_id FROM boat WHERE project_id = %s)
boat: no project: SELECT * FROM fish WHERE project_id = %s UNION ALL SELECT * FROM boat
without their project: INSERT INTO fish (a) VALUES (%s)
without their project: COPY fish (a) FROM STDIN
"""


@pytest.mark.parametrize("text", ONE_NODE.strip().splitlines())
def test_a_statement_that_names_the_project_passes(text):
    assert read(text, TENANTS) is None


@pytest.mark.parametrize("line", ALL_NODES.strip().splitlines())
def test_a_table_without_its_project_is_found(line):
    tables, text = line.split(": ", 1)
    found = read(text, TENANTS)
    assert isinstance(found, AllNodes)
    assert found.tables == tables


@pytest.mark.parametrize("line", REJECTED.strip().splitlines())
def test_what_nodes_refuse_is_rejected_also_where_the_project_is_named(line):
    why, text = line.rsplit(": ", 1)
    found = read(text, TENANTS)
    assert isinstance(found, Rejected)
    assert why in found.why


def test_a_write_of_a_table_beside_is_planned_as_those_of_tenants_are():
    text = "INSERT INTO shore (at) VALUES (%s) ON CONFLICT (at) DO UPDATE SET at = {}"
    beside = frozenset(("shore",))
    assert read(text.format("excluded.at"), TENANTS, beside) is None
    assert isinstance(read(text.format("now()"), TENANTS, beside), Rejected)
    assert read(text.format("now()"), TENANTS) is None
    assert read("SELECT * FROM shore FOR UPDATE", TENANTS, beside) is None


def test_sign_ins_are_beside_the_tables_of_tenants_and_the_audit_is_not():
    assert {"auth_user", "detection_apikey", "detection_signin"} <= statement_checks._beside()
    assert not {"detection_auditentry", "detection_session"} & statement_checks._beside()


def test_the_events_are_copied_with_their_project():
    # The copies of psycopg pass no wrapper of Django.
    assert read(event_records._COPY, tenant_tables()) is None


def entries_of(file: str, text: str) -> str | None:
    compiled = compile(
        "def search(text):\n    return [entry(one) for one in [text]][0]",
        f"{statement_checks._ROOT}/{file}",
        "exec",
    )
    place: dict[str, Any] = {"entry": statement_checks.entry}
    exec(compiled, place)
    found: str | None = place["search"](text)
    return found


def test_a_statement_of_the_product_is_listed_by_its_place_and_one_of_a_test_is_not():
    text = "SELECT * FROM detection_session WHERE id = %s"
    assert entries_of("detection/sea.py", text) == "detection/sea.py search SELECT detection_session"
    assert entries_of("detection/sea.py", f"{text} AND project_id = %s") is None
    assert statement_checks.entry(text) is None


def test_nothing_runs_on_all_nodes_while_an_agent_waits_and_nothing_rejected_is_listed():
    text = "SELECT * FROM detection_session WHERE id = %s"
    for file, sent in (("services/ingestion/guard.py", text), ("selectors/sea.py", f"{text} FOR UPDATE")):
        found = entries_of(f"detection/{file}", sent)
        assert found is not None
        assert found.startswith("rejected ")
    assert not [line for line in statement_checks.listed() if line.startswith("rejected")]


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
    assert [read(text, tenant_tables()) for text in sent] == [None] * len(sent)
