"""Reads of the audit: who changed what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Q, QuerySet

from detection.models import AuditEntry
from detection.selectors.pages import Page, Position, cut

CHUNK_ROWS = 500


@dataclass(frozen=True, slots=True)
class AuditFilters:
    """Filters of the audit; empty ones match everything.

    Attributes
    ----------
    action
        A whole action (``session.stop``) or its first word (``session``).
    start, end
        Half open.
    with_server
        Also changes of the whole server, which belong to no project.
    """

    actor: str = ""
    action: str = ""
    subject: str = ""
    start: datetime | None = None
    end: datetime | None = None
    with_server: bool = False


def _narrowed(rows: QuerySet[AuditEntry], filters: AuditFilters) -> QuerySet[AuditEntry]:
    if filters.actor:
        rows = rows.filter(actor=filters.actor)
    if filters.action:
        rows = rows.filter(Q(action=filters.action) | Q(action__startswith=f"{filters.action}."))
    if filters.subject:
        rows = rows.filter(subject=filters.subject)
    if filters.start:
        rows = rows.filter(at__gte=filters.start)
    if filters.end:
        rows = rows.filter(at__lt=filters.end)
    return rows


def list_entries(
    project_id: int, filters: AuditFilters, cursor: str = "", limit: int = 50
) -> Page[AuditEntry]:
    """List the changes of a project, the newest first; `BadCursor` for a cursor of another list. One query, by index."""
    rows = _narrowed(AuditEntry.objects.order_by("-at", "-id"), filters)
    if cursor:
        rows = rows.filter(Position.decode(cursor).beyond("at"))
    newest = rows.filter(project_id=project_id)[: limit + 1]
    if filters.with_server:
        # Each part uses its index with a limit; one query for both would read and sort all entries.
        parts = newest.union(rows.filter(project=None)[: limit + 1], all=True)
        newest = parts.order_by("-at", "-id")[: limit + 1]
    found = list(newest)
    return cut(found, limit, lambda row: Position(row.at, row.pk).encode())


def export_entries(project_id: int, filters: AuditFilters, limit: int) -> Iterator[AuditEntry]:
    """Read up to `limit` changes in the order of the list, in chunks, so that no export holds them all."""
    cursor, left = "", limit
    while left > 0:
        page = list_entries(project_id, filters, cursor, min(CHUNK_ROWS, left))
        yield from page.items
        left -= len(page.items)
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


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
        f'LoopGuard runs as "{role}", which has the rights to alter the audit; only triggers keep it from that. '
        "See docs/operations.md, Two database roles."
    )
