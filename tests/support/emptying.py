"""Empties the test database after a test that commits.

Django's flush truncates every table and then writes content types and permissions anew: 0.15 s of processor time,
however few rows there are. This deletes the rows that exist. It does so on a connection that outlives the tests:
a new one reads the descriptions of all tables again, which costs five times as much as the work.
"""

import functools
from typing import Any

import psycopg
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.errors import DeadlockDetected

from detection.models import AuditEntry

_KEPT = (ContentType, Permission)
"""Migrations write these; tests do not."""
_LOCK_SECONDS = 60
_TRIES = 5
_kept_connections: list[psycopg.Connection] = []


def empty_tables(_test_case: Any) -> None:
    """Replace `TransactionTestCase._fixture_teardown`; the suite has one database."""
    for tries_left in reversed(range(_TRIES)):
        connection = _connection()
        try:
            _empty(connection)
            return
        except psycopg.OperationalError as error:
            # A test ended all connections; or a request that it did not wait for goes on after a deadlock, and ends.
            if not tries_left or not (connection.closed or isinstance(error, DeadlockDetected)):
                raise
            if connection.closed:
                _kept_connections.clear()


def _empty(connection: psycopg.Connection) -> None:
    lock, ask = _statements()
    with connection.transaction():
        # Of Citus: of tables that refer to one another, one connection to each node. Elsewhere it means nothing.
        connection.execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
        # Waits, as a truncation does, for transactions that threads of the test have not finished.
        connection.execute(lock)
        for (table,) in connection.execute(ask).fetchall():
            # A trigger forbids deleting entries of the audit.
            command = "TRUNCATE" if table == AuditEntry._meta.db_table else "DELETE FROM"
            connection.execute(f"{command} {table}")


@functools.cache
def _statements() -> tuple[str, str]:
    """Return one statement that locks all tables, and one that names those with rows."""
    tables = [
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if not model._meta.proxy and model not in _KEPT
    ]
    ask = " UNION ALL ".join(f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table})" for table in tables)
    return f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE", ask


def _connection() -> psycopg.Connection:
    if not _kept_connections:
        parameters = connections[DEFAULT_DB_ALIAS].get_connection_params()
        del parameters["cursor_factory"]  # Django's prepares nothing
        connection = psycopg.connect(**parameters | {"autocommit": True, "prepare_threshold": 0})
        connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        _kept_connections.append(connection)
    return _kept_connections[0]


def end_connections() -> None:
    """End all connections to the database, also those of threads that tests left behind, so that it can be dropped."""
    _connection().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    _kept_connections.pop().close()
