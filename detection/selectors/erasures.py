"""Reads of the erasures of a project, and their public form."""

from __future__ import annotations

from typing import Any

from detection.models import Erasure, Project
from detection.models.erasures import name_digest
from detection.selectors.pages import Page, Position, cut


def list_erasures(
    project_id: int, name: tuple[str, str] | None = None, cursor: str = "", limit: int = 50
) -> Page[Erasure]:
    """Return a page of the erasures of a project, newest first; `BadCursor` for a cursor of another list.

    Parameters
    ----------
    name
        Only those of this name: ``session`` or ``agent``, and the name itself.
    """
    rows = Erasure.objects.filter(project_id=project_id).order_by("-requested_at", "-pk")
    if name is not None:
        project = Project.objects.get(pk=project_id)
        rows = rows.filter(of=name[0], name_digest=name_digest(project, *name))
    if cursor:
        rows = rows.filter(Position.decode(cursor).beyond("requested_at"))
    return cut(list(rows[: limit + 1]), limit, lambda row: Position(row.requested_at, row.pk).encode())


def find_erasure(project_id: int, public_id: str) -> Erasure | None:
    """Return the erasure of the project with this id, or None."""
    return Erasure.objects.filter(project_id=project_id, public_id=public_id).first()


def as_document(row: Erasure) -> dict[str, Any]:
    """Return the public form of an erasure."""
    return {
        "id": row.public_id,
        "of": row.of,
        "name_digest": row.name_digest,
        "state": row.state,
        "error": row.error,
        "requested_by": row.requested_by,
        "requested_at": row.requested_at,
        "finished_at": row.finished_at,
        "removed": {kind: count for kind, count in sorted(row.removed.items()) if count},
    }
