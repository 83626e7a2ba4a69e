"""Reads of the imports of a project."""

from __future__ import annotations

from detection.models import TranscriptImport
from detection.selectors.pages import Order, Page, SortKey, cut

_NEWEST = Order(SortKey("created", "created_at"))


def list_imports(
    project_id: int, _filters: None = None, cursor: str = "", limit: int = 50
) -> Page[TranscriptImport]:
    """Return a page of the imports of a project, newest first; `BadCursor` for a cursor of another list."""
    rows = _NEWEST.page(TranscriptImport.objects.filter(project_id=project_id), cursor)
    return cut([*rows[: limit + 1]], limit, _NEWEST.cursor)


def find_import(project_id: int, public_id: str) -> TranscriptImport | None:
    """Return the import of the project with this id, or None."""
    return TranscriptImport.objects.filter(project_id=project_id, public_id=public_id).first()
