"""Privileges of LoopGuard's database role: it can use every table, but only add to the audit log.

The owner of the tables migrates, and applies these rights after that; applying them again changes nothing. Does not
belong here: what people and keys may do.
"""

from __future__ import annotations

import contextlib

from django.conf import settings
from django.db import ProgrammingError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from detection.services.errors import ServiceError
from detection.sql.advisory_locks import AdvisoryLock, lock_until_commit

_NO_TRUNCATE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger
                   WHERE tgrelid = 'detection_auditentry'::regclass AND tgname = 'audit_no_truncate') THEN
        CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON detection_auditentry
            FOR EACH STATEMENT EXECUTE FUNCTION detection_audit_is_append_only();
    END IF;
END $$
"""
# Tables are granted as they are found, so that later migrations need not think of it; the audit then loses all but two.
# A temporary table would hide the audit's from a connection.
_GRANTS = """
REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC;
REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC;
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
GRANT EXECUTE ON FUNCTION detection_ensure_partitions, detection_drop_empty_partitions, detection_erase_from_audit
    TO {role};
REVOKE ALL ON detection_auditentry FROM PUBLIC, {role};
GRANT SELECT, INSERT ON detection_auditentry TO {role};
"""


class NoSuchRole(ServiceError):
    """The role to run as does not exist, and the owner must not create it."""

    code, status = "no_such_role", 409


def forbid_truncate(using: str) -> None:
    """Prevent the owner from truncating the audit log, as it cannot change or delete entries.

    No migration does this: a test database is emptied by truncating its tables.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_NO_TRUNCATE)


def grant(owner: str, role: str, password: str) -> None:
    """Grant LoopGuard's role the privileges that it needs, in one transaction.

    Parameters
    ----------
    owner
        Alias of the connection of the role that owns the tables.
    role, password
        The role that gets them. It is created with this password if it does not exist and the owner may create roles.

    Raises
    ------
    NoSuchRole
        If the role does not exist and the owner may not create it.
    """
    connection = connections[owner]
    with transaction.atomic(using=owner), connection.cursor() as cursor:
        lock_until_commit(AdvisoryLock.DATABASE_RIGHTS, using=owner)
        cursor.execute("SELECT current_database(), current_schema()")
        database, schema = cursor.fetchone()
        _make_role(connection, role, password)
        names = {"database": database, "schema": schema, "role": role}
        grants = sql.SQL(_GRANTS).format(**{key: sql.Identifier(name) for key, name in names.items()})
        cursor.execute(grants)
        if settings.DATABASE_FOLDER:
            # Deleting on a disk that is nearly full. Only a superuser may grant it, on PostgreSQL 15 or newer.
            with contextlib.suppress(ProgrammingError), transaction.atomic(using=owner):
                cursor.execute(sql.SQL("GRANT pg_checkpoint TO {}").format(sql.Identifier(role)))


def _make_role(connection: BaseDatabaseWrapper, role: str, password: str) -> None:
    name = sql.Identifier(role)
    with connection.cursor() as cursor:
        # Hashed here, so that no log of the server can hold the password.
        hashed = connection.connection.pgconn.encrypt_password(
            password.encode(), role.encode(), b"scram-sha-256"
        )
        secret = sql.Literal(hashed.decode() if password else None)
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
        if cursor.fetchone():
            # Where a database administrator keeps the passwords, the owner may not touch them.
            with contextlib.suppress(ProgrammingError), transaction.atomic(using=connection.alias):
                if password:
                    cursor.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, secret))
            return
        options = sql.SQL("LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS")
        try:
            cursor.execute(sql.SQL("CREATE ROLE {} {} PASSWORD {}").format(name, options, secret))
        except ProgrammingError as error:
            raise NoSuchRole(
                f'The role "{role}" of DATABASE_URL does not exist, and "{connection.settings_dict["USER"]}" may not'
                f" create it. Let an administrator run: CREATE ROLE \"{role}\" LOGIN PASSWORD '...'"
            ) from error
