"""Reads of the imports of a project."""

from __future__ import annotations

from detection.models import TranscriptImport
from detection.selectors.pages import Page, Position, cut


def list_imports(
    project_id: int, _filters: None = None, cursor: str = "", limit: int = 50
) -> Page[TranscriptImport]:
    """Return a page of the imports of a project, newest first; `BadCursor` for a cursor of another list."""
    rows = TranscriptImport.objects.filter(project_id=project_id).order_by("-created_at", "-pk")
    if cursor:
        rows = rows.filter(Position.decode(cursor).beyond("created_at"))
    found = list(rows[: limit + 1])
    return cut(found, limit, lambda row: Position(row.created_at, row.pk).encode())


def find_import(project_id: int, public_id: str) -> TranscriptImport | None:
    """Return the import of the project with this id, or None."""
    return TranscriptImport.objects.filter(project_id=project_id, public_id=public_id).first()
