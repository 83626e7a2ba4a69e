"""Walks through the sessions touched since the last walk, project by project, in batches of a transaction each.

They are found by the transaction that touched them last. A walk that dies, or two at once, do nothing twice if the
visitor stores how far it has come in a session in the transaction of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from django.db import transaction

from detection.models import CountingCursor, IndexingCursor
from detection.selectors import changes
from detection.sql.advisory_locks import AdvisoryLock, try_lock_until_commit

Place = tuple[int, int]
"""A session in the order of the walk: the transaction that touched it last, and its id."""
Visitor = Callable[[int, int, Place], tuple[int, Place | None]]
"""Takes the next sessions of a project: called with the project, the first transaction and the place after which they
begin. Returns how many there were, and the last one that needs no other visit; None after the last of all."""


def walk(
    cursor: type[CountingCursor | IndexingCursor],
    lock: AdvisoryLock,
    visit: Visitor,
    max_sessions: int,
    projects: Callable[[], Collection[int]] | None = None,
    **at_end: Any,
) -> tuple[int, bool]:
    """Visit what was touched since the cursor, and move it. One process walks at a time; another one returns at once.

    Parameters
    ----------
    max_sessions
        After these, the walk ends and the cursor stays.
    projects
        Returns those to visit, and is called after the cursor was read; all, if not given.
    at_end
        Fields that are set with the cursor.

    Returns
    -------
    tuple
        How many sessions were visited, and whether these were all.
    """
    with transaction.atomic():
        if not try_lock_until_commit(lock):
            return 0, False
        place, _ = cursor.objects.get_or_create(pk=1)
    # What is not committed now was touched by a transaction that is not older than this.
    horizon = changes.horizon()
    only = projects() if projects is not None else None
    total = 0
    for project_id in changes.touched_projects(place.seen_xid):
        after: Place | None = (0, 0) if only is None or project_id in only else None
        while after is not None:
            with transaction.atomic():
                if total >= max_sessions or not try_lock_until_commit(lock):
                    return total, False
                number, after = visit(project_id, place.seen_xid, after)
            total += number
    # Unless it was set back meanwhile.
    cursor.objects.filter(pk=1, seen_xid=place.seen_xid).update(seen_xid=horizon, **at_end)
    return total, True
