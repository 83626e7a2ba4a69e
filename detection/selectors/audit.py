"""Reads of the audit: who changed what."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.db.models import Q

from detection.models import AuditEntry, StoredSettings
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import AUDIT
from detection.selectors.pages import Page, cut

ALL_ENTRIES = list_query(AUDIT)
"""Every entry, the newest first."""
_CLOCKS_DIFFER = timedelta(minutes=1)


def list_entries(
    project_id: int,
    query: ListQuery = ALL_ENTRIES,
    cursor: str = "",
    limit: int = 50,
    *,
    with_server: bool = False,
) -> Page[AuditEntry]:
    """List the changes of a project. One query, by index.

    Parameters
    ----------
    query
        Of the list `AUDIT`.
    with_server
        Also changes of the whole server, which belong to no project.

    Raises
    ------
    BadCursor
    """
    rows = query.order.page(AuditEntry.objects.filter(query.condition()), cursor)
    found = rows.filter(project_id=project_id)[: limit + 1]
    if with_server:
        # Each part uses its index with a limit; one query for both would read and sort all entries.
        parts = found.union(rows.filter(project=None)[: limit + 1], all=True)
        found = query.order.page(parts, "")[: limit + 1]
    return cut(list(found), limit, query.order.cursor)


def author_of(row: StoredSettings | None) -> str:
    """Return who saved an override or tool rule; empty if unknown. One query by index, unless a person saved it."""
    if row is None:
        return ""
    if row.updated_by is not None:
        return row.updated_by.get_username()
    # The entry has the time of the database, the row that of the process.
    near = (row.updated_at - _CLOCKS_DIFFER, row.updated_at + _CLOCKS_DIFFER)
    rows = AuditEntry.objects.filter(
        Q(project_id=row.project_id), at__range=near, action__startswith="policy."
    )
    return rows.filter(subject=str(row.scope)).values_list("actor", flat=True).first() or ""


_CHANGEABLE_SQL = """
SELECT current_user,
       pg_has_role(c.relowner, 'MEMBER') OR pg_has_role(n.nspowner, 'MEMBER')
       OR has_any_column_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE, TRUNCATE, TRIGGER')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'detection_auditentry'::regclass
"""


def audit_weakness() -> str:
    """Return why LoopGuard's role could change audit entries; empty if it can only add them.

    A superuser, the owner of the table or of its schema, and any member of these could.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHANGEABLE_SQL)
        role, is_changeable = cursor.fetchone()
    if not is_changeable:
        return ""
    return (
        f'LoopGuard runs as "{role}", which has permission to alter the audit; only triggers prevent it. '
        "See docs/operations.md, Two database roles."
    )
