"""Reads of the erasures of a project, and what is shown of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from detection.models import Erasure, Project
from detection.models.erasures import name_digest
from detection.selectors.pages import Order, Page, SortKey, cut
from detection.selectors.row_fields import Shown

_NEWEST = Order(SortKey("requested", "requested_at"))


def removed(row: Erasure) -> dict[str, int]:
    """Return the numbers of removed rows by kind, without kinds of which there were none."""
    return {kind: count for kind, count in sorted(row.removed.items()) if count}


class ErasureRow:
    """An `Erasure`."""

    # fmt: off
    public_id: Annotated[str, Shown("Id of the erasure.", name="id")]
    of: Annotated[str, Shown("What is erased.", choices=("session", "agent"))]
    name_digest: Annotated[str, Shown(
        "Digest of the name, keyed with a secret of the project. The name itself is not kept.",
    )]
    state: Annotated[str, Shown(
        "Whether everything has been removed. A failed erasure is retried when it is requested again.",
        choices=("waiting", "finished", "failed"),
    )]
    error: Annotated[str, Shown("What ended the last attempt; empty if nothing did.")]
    requested_by: Annotated[str, Shown("Who requested it.")]
    requested_at: Annotated[datetime, Shown("When it was requested.")]
    finished_at: Annotated[datetime | None, Shown("When everything was removed.")]
    removed: Annotated[dict[str, int], Shown("Number of removed rows by kind, so far.", show=removed)]
    # fmt: on


def list_erasures(
    project_id: int, name: tuple[str, str] | None = None, cursor: str = "", limit: int = 50
) -> Page[Erasure]:
    """Return a page of the erasures of a project, newest first; `BadCursor` for a cursor of another list.

    Parameters
    ----------
    name
        Only those of this name: ``session`` or ``agent``, and the name itself.
    """
    rows = Erasure.objects.filter(project_id=project_id)
    if name is not None:
        project = Project.objects.get(pk=project_id)
        rows = rows.filter(of=name[0], name_digest=name_digest(project, *name))
    return cut([*_NEWEST.page(rows, cursor)[: limit + 1]], limit, _NEWEST.cursor)


def find_erasure(project_id: int, public_id: str) -> Erasure | None:
    """Return the erasure of the project with this id, or None."""
    return Erasure.objects.filter(project_id=project_id, public_id=public_id).first()
