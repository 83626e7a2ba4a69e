"""What the role that runs LoopGuard may do to the audit, tried as that role; knows PostgreSQL and nothing of Django."""

from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege, RaiseException

_ENTRY = (
    "detection_auditentry (id, actor, action, subject, request_id) VALUES (1, 'eve', 'test.entry', 'x', '')"
)
REFUSED = (
    "UPDATE detection_auditentry SET actor = 'eve'",
    f"INSERT INTO {_ENTRY} ON CONFLICT (id) DO UPDATE SET actor = 'eve'",
    "MERGE INTO detection_auditentry a USING (SELECT 1) b ON true WHEN MATCHED THEN DELETE",
    "DELETE FROM detection_auditentry",
    "TRUNCATE detection_auditentry",
    "TRUNCATE detection_project CASCADE",
    "DROP TABLE detection_auditentry",
    "DROP TRIGGER audit_append_only ON detection_auditentry",
    "ALTER TABLE detection_auditentry DISABLE TRIGGER ALL",
    "ALTER TABLE detection_auditentry ALTER COLUMN actor TYPE text USING 'eve'",
    "ALTER TABLE detection_auditentry RENAME TO elsewhere",
    "CREATE RULE away AS ON INSERT TO detection_auditentry DO INSTEAD NOTHING",
    "CREATE TRIGGER away BEFORE INSERT ON detection_auditentry FOR EACH ROW EXECUTE FUNCTION unique_key_recheck()",
    "DROP FUNCTION detection_audit_is_append_only CASCADE",
    "CREATE TEMPORARY TABLE detection_auditentry (actor text)",
    "CREATE TABLE anything (actor text)",
    "CREATE SCHEMA anything",
    "CREATE ROLE anything",
    "SELECT setval('detection_auditentry_id_seq', 1)",
    "SET session_replication_role = replica",
)


def only_adds_to_the_audit(runtime_url: str, owner: str) -> None:
    """Assert what holds for the role of `runtime_url`; `owner` is the name of the one that owns the tables."""
    with psycopg.connect(runtime_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO detection_auditentry (actor, action, subject, request_id)"
            " VALUES ('ana', 'test.rights', 'x', '')"
        )
        before = connection.execute("SELECT * FROM detection_auditentry ORDER BY id").fetchall()
        set_role = sql.SQL("SET ROLE {}").format(sql.Identifier(owner)).as_string(connection)
        assert [one for one in (*REFUSED, set_role) if not _is_refused(connection, one)] == []
        after = connection.execute("SELECT * FROM detection_auditentry ORDER BY id").fetchall()
        assert after[: len(before)] == before


def _is_refused(connection: psycopg.Connection[Any], statement: str) -> bool:
    try:
        connection.execute(statement)
    except InsufficientPrivilege:
        return True
    return False


def even_the_owner_meets_triggers(owner_url: str) -> None:
    """Assert that the owner does not alter the audit by mistake."""
    for statement in ("UPDATE detection_auditentry SET actor = 'eve'", "TRUNCATE detection_auditentry"):
        with (
            psycopg.connect(owner_url) as connection,
            pytest.raises(RaiseException, match="append-only"),
        ):
            connection.execute(statement)
