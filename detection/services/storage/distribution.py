"""Spreads the tables over the nodes of Citus, so that each project lives on one of them.

- Tables of tenants' rows are distributed by `project_id` and colocated: all rows of a project are on one node.
- Tables that such rows refer to, or that are read with them, are on every node.
- Everything else stays on the coordinator: sign-ins, keys, containments, the audit. A write to a table that is on every
  node fails while one of them is away, and these must not.

Does not belong here: nodes, and which of them a project is on, which Citus's own functions change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, cast

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model
from psycopg import sql

from detection.models import GatewayBackend, Project
from detection.models.tenants import tenant_tables
from detection.services.errors import Conflict
from detection.sql.postgresql.base import CLOSED, DatabaseWrapper
from detection.sql.postgresql.schema import ANCHOR, TenantSchemaEditor

_EVERYWHERE: Final = (get_user_model(), Project, GatewayBackend)
"""People and projects are read with rows of projects; keys of the gateway, found before their project, refer to
backends."""
_END_OTHERS: Final = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_type = 'client backend' AND application_name NOT LIKE 'citus%' AND pg_has_role(usesysid, 'USAGE')
"""


class TableMove(NamedTuple):
    """A table that is to be moved, to every node or by project."""

    table: str
    is_everywhere: bool


class _Reference(NamedTuple):
    table: str
    name: str
    target: str
    statement: str


def tables_by_project() -> frozenset[str]:
    """Return the tables whose rows are where their project is."""
    return tenant_tables() - {model._meta.db_table for model in _EVERYWHERE}


@contextmanager
def entered(using: str) -> Iterator[bool]:
    """Use the database also if an earlier attempt has left it closed; yields whether one has.

    Nothing ends a table that takes hours.
    """
    aliases = {using, DEFAULT_DB_ALIAS}
    before = {alias: connections[alias].settings_dict["OPTIONS"]["options"] for alias in aliases}
    try:
        for alias in aliases:
            own = f"{before[alias]} -c {CLOSED}=off -c statement_timeout=0 -c lock_timeout=0"
            _reconnect(alias, own)
        yield bool(_ask(using, _IS_CLOSED))
    finally:
        for alias in aliases:
            _reconnect(alias, before[alias])


def _reconnect(alias: str, options: str) -> None:
    """Let the next connection have these options."""
    connection = cast("DatabaseWrapper", connections[alias])
    connection.close()
    connection.close_pool()
    connection.settings_dict["OPTIONS"]["options"] = options


def plan(using: str) -> list[TableMove]:
    """Return the tables that are not yet where they belong, in the order in which they move.

    Raises
    ------
    Conflict
        If the server has no Citus, or the coordinator no address that other nodes can reach.
    """
    if not _ask(using, "SELECT FROM pg_extension WHERE extname = 'citus'"):
        raise Conflict("This database has no extension Citus: nothing was changed.")
    if not _ask(using, "SELECT FROM pg_dist_node WHERE groupid = 0"):
        raise Conflict(
            "The other nodes do not know the coordinator: let an administrator run SELECT"
            " citus_set_coordinator_host('its address'). Nothing was changed."
        )
    done = {
        table
        for (table,) in _ask(
            using,
            "SELECT c.relname FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid"
            " WHERE c.relnamespace = current_schema()::regnamespace AND (p.partmethod = 'h' OR p.repmodel = 't')",
        )
    }
    everywhere = [model._meta.db_table for model in _EVERYWHERE]
    by_project = sorted(tables_by_project(), key=lambda table: (table != ANCHOR, table))
    steps = [*(TableMove(one, True) for one in everywhere), *(TableMove(one, False) for one in by_project)]
    return [step for step in steps if step.table not in done]


def distribute(using: str, steps: list[TableMove], report: Callable[[str, float], None]) -> float:
    """Move tables to the nodes, inside `entered`; meanwhile nobody else can use the database.

    A step is a transaction. After an error, the database stays closed: with half of the tables moved, statements fail
    anyway. Doing it again continues where it ended.

    Parameters
    ----------
    report
        Called with what was done, and how many seconds that took.

    Returns
    -------
    float
        For how many seconds requests were answered with 503.
    """
    started_at = time.monotonic()
    with closed(using):
        before = dict(_ask(using, _LAST_NUMBERS))
        moved = {step.table for step in steps}
        wanted = [*_references(using)]
        existing = {*_ask(using, _CONSTRAINTS)}
        for one in wanted:
            if (one.table, one.name) in existing and {one.table, one.target} & moved:
                _run(using, f'ALTER TABLE "{one.table}" DROP CONSTRAINT "{one.name}"')
        for step in steps:
            _timed(report, step.table, partial(_move, using, step))
        existing = {*_ask(using, _CONSTRAINTS)}
        for one in wanted:
            if (one.table, one.name) not in existing:
                _timed(report, f"{one.table} to {one.target}", partial(_run, using, one.statement))
        _number_on(using, before)
    return time.monotonic() - started_at


_IS_CLOSED: Final = f"""
SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
WHERE d.datname = current_database() AND '{CLOSED}=on' = ANY (s.setconfig)
"""
_CONSTRAINTS: Final = """
SELECT c.relname, o.conname FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
WHERE o.contype = 'f' AND o.conparentid = 0 AND c.relnamespace = current_schema()::regnamespace
"""
_LAST_NUMBERS: Final = """
SELECT format('%I.%I', schemaname, sequencename), last_value FROM pg_sequences WHERE schemaname = current_schema()
"""
_NUMBERED: Final = """
SELECT c.relname, a.attname, pg_get_serial_sequence(c.oid::regclass::text, a.attname)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attidentity <> '' AND c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
"""


def _number_on(using: str, before: dict[str, int | None]) -> None:
    """Let the numbers of rows go on where they were: Citus makes some tables anew, which then begin at 1."""
    for table, column, sequence in _ask(using, _NUMBERED):
        with connections[using].cursor() as cursor:
            cursor.execute(sql.SQL("SELECT max({}) FROM {}").format(*map(sql.Identifier, (column, table))))
            (highest,) = cursor.fetchone()
            if number := max(highest or 0, before.get(sequence) or 0):
                cursor.execute("SELECT setval(%s, %s)", [sequence, number])


@contextmanager
def closed(using: str, *, opens_after_errors: bool = False) -> Iterator[None]:
    """Close the database for all other connections of LoopGuard, which then answers 503.

    Parameters
    ----------
    opens_after_errors
        Whether an error leaves the database as it was.
    """
    name = sql.Identifier(connections[using].settings_dict["NAME"])
    is_done = False
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(sql.SQL(f"ALTER DATABASE {{}} SET {CLOSED} = on").format(name))
            cursor.execute(_END_OTHERS)
        yield
        is_done = True
    finally:
        if is_done or opens_after_errors:
            with connections[using].cursor() as cursor:
                cursor.execute(sql.SQL(f"ALTER DATABASE {{}} RESET {CLOSED}").format(name))


def _move(using: str, step: TableMove) -> None:
    if step.is_everywhere:
        _run(using, "SELECT create_reference_table(%s)", [step.table])
    else:
        beside = "none" if step.table == ANCHOR else ANCHOR
        _run(
            using,
            "SELECT create_distributed_table(%s, 'project_id', colocate_with => %s)",
            [step.table, beside],
        )


def _references(using: str) -> Iterator[_Reference]:
    """Yield the foreign keys of all tables."""
    editor: Any = connections[using].schema_editor(collect_sql=True)
    assert isinstance(editor, TenantSchemaEditor)  # noqa: S101 - says so to the type checker
    editor.is_distributed = True
    for model in apps.get_models(include_auto_created=True):
        table = model._meta.db_table
        for field in model._meta.local_concrete_fields:
            if field.remote_field is None or not getattr(field, "db_constraint", False):
                continue
            target = cast("type[Model]", field.related_model)._meta.db_table
            name, statement = editor.reference(model, field)
            yield _Reference(table, name, target, statement)


def _timed(report: Callable[[str, float], None], what: str, work: Callable[[], None]) -> None:
    started_at = time.monotonic()
    work()
    report(what, time.monotonic() - started_at)


def _ask(using: str, text: str) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(text)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _run(using: str, text: str, parameters: list[str] | None = None) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(text, parameters)
