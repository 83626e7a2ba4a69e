"""Every table of the real database belongs to projects, with keys that begin with the project, or is the server's own."""

import pytest
from django.db import connection

SERVER_TABLES = {
    "people and their sign-ins": (
        "auth_user", "auth_user_groups", "auth_user_user_permissions", "auth_group", "auth_group_permissions",
        "auth_permission", "django_admin_log", "django_session", "otp_static_staticdevice", "otp_static_statictoken",
        "otp_totp_totpdevice", "detection_signin", "detection_failedsignins",
    ),
    "of Django": ("django_content_type", "django_migrations"),
    "projects, and who may enter them": ("detection_project", "detection_membership"),
    "looked up before the project is known": ("detection_apikey", "detection_gatewaytoken", "detection_invitation", "detection_report"),
    "also of the whole server, or of no known project": (
        "detection_containment",
        "detection_override", "detection_auditentry", "detection_attempt",
    ),
    "what processes know of one another": (
        "detection_partheartbeat", "detection_beatprocess", "detection_briefrecord", "detection_countingcursor",
        "detection_indexingcursor",
    ),
}  # fmt: skip
_OF_SERVER = {table for tables in SERVER_TABLES.values() for table in tables}

_TABLES = """
SELECT c.relname, coalesce((SELECT a.attnotnull FROM pg_attribute a
                            WHERE a.attrelid = c.oid AND a.attname = 'project_id' AND NOT a.attisdropped), false)
FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""
_UNIQUE = """
SELECT c.relname, i.relname, (SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = x.indkey[0])
FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace AND NOT c.relispartition AND (x.indisunique OR x.indisexclusion)
"""
_REFERENCES = """
SELECT c.conrelid::regclass::text, c.conname, c.confrelid::regclass::text,
    (SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = c.conkey[1]),
    (SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.confrelid AND a.attnum = c.confkey[1])
FROM pg_constraint c WHERE c.connamespace = current_schema()::regnamespace AND c.contype = 'f' AND c.conparentid = 0
"""


def rows(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def problems():
    """What stands in the way of keeping each project's rows in a place of their own."""
    has_project = dict(rows(_TABLES))
    found = [
        f"{table} has no project_id"
        for table, has in has_project.items()
        if not has and table not in _OF_SERVER
    ]
    found += [f"{table} is no table" for table in _OF_SERVER - has_project.keys()]
    found += [
        f"{index} of {table} begins with {first}"
        for table, index, first in rows(_UNIQUE)
        if table not in _OF_SERVER and first != "project_id"
    ]
    found += [
        f"{name} refers from {own} of {table} to {other} of {target}"
        for table, name, target, own, other in rows(_REFERENCES)
        if target not in _OF_SERVER and (own, other) != ("project_id", "project_id")
    ]
    return sorted(found)


@pytest.mark.django_db
def test_every_key_of_a_project_s_rows_begins_with_the_project():
    assert problems() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE TABLE x (id int PRIMARY KEY)", "x has no project_id"),
        ("CREATE TABLE x (project_id int, a int)", "x has no project_id"),  # a row could belong to none
        ("CREATE TABLE x (project_id int NOT NULL, id int PRIMARY KEY)", "x_pkey of x begins with id"),
        (
            "CREATE UNIQUE INDEX x ON detection_incident (calls_digest, project_id) WHERE is_demo",
            "x of detection_incident begins with calls_digest",
        ),
        (
            (
                "ALTER TABLE detection_apikey ADD a bigint, ADD CONSTRAINT x FOREIGN KEY (a, project_id)"
                " REFERENCES detection_incident (id, project_id)"
            ),
            "x refers from a of detection_apikey to id of detection_incident",
        ),
    ],
)
def test_what_does_not_begin_with_the_project_is_found(statement, problem):
    with connection.cursor() as cursor:
        cursor.execute("CREATE UNIQUE INDEX other_way ON detection_incident (id, project_id)")
        before = problems()
        cursor.execute(statement)
    assert problem in {*problems()} - {*before}


@pytest.mark.django_db
def test_a_row_cannot_belong_to_a_row_of_another_project():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO detection_project (slug, name, digest_secret, policy_version, stores_payloads, retention_days,"
            " redacted_names, redaction_patterns, requires_second_factor, created_at)"
            " SELECT 'p' || n, '', '', 1, true, 30, '{}', '{}', false, now() FROM generate_series(1, 2) n RETURNING id"
        )
        (first,), (second,) = cursor.fetchall()
        cursor.execute(
            "INSERT INTO detection_loop (project_id, public_id, key, kind, tool, program, results, detail, label)"
            " VALUES (%s, 'loop_1', 'k', 'repeat', '', '', '', '', '') RETURNING id",
            [first],
        )
        (loop,) = cursor.fetchone()
        change = (
            "INSERT INTO detection_loopactivity (project_id, loop_id, actor, action, note, before, last_incident,"
            " done_up_to, changed) VALUES (%s, %s, 'ana', 'mute', '', '{}', 0, 0, 0)"
        )
        cursor.execute(change, [first, loop])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(Exception, match="foreign key"):
            cursor.execute(change, [second, loop])
