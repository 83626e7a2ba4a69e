"""Reads the tree of sessions that started one another."""

from __future__ import annotations

from dataclasses import dataclass

from detection.models import Session
from detection.selectors.session_rows import SessionRow
from detection.selectors.sessions import row_of

MAX_LEVELS, MAX_SESSIONS = 6, 60
_FIELDS = tuple(SessionRow.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Branch:
    """A session of the tree; children follow their parent."""

    session: SessionRow
    level: int


@dataclass(frozen=True, slots=True)
class SessionTree:
    """A session's ancestors and descendants, with their siblings.

    Attributes
    ----------
    branches
        Depth first, siblings in the order of their start; at most `MAX_SESSIONS`.
    is_cut
        Whether sessions are missing.
    """

    branches: tuple[Branch, ...]
    is_cut: bool


def session_tree(session: Session) -> SessionTree:
    """Return the tree of a session, from its root down; one query for each level, at most `2 * MAX_LEVELS`."""
    root, known = session, {session.external_id}
    for _ in range(MAX_LEVELS):
        name = root.parent_external_id
        above = None if not name or name in known else _find(session.project_id, name)
        if above is None:
            break
        known.add(name)
        root = above
    rows = {root.external_id: row_of(root)}
    children: dict[str, list[str]] = {}
    level, is_cut = [root.external_id], False
    for _ in range(2 * MAX_LEVELS):
        # The exclusion names the condition of the index.
        found = Session.objects.filter(project_id=session.project_id, parent_external_id__in=level)
        found = found.exclude(parent_external_id="")
        level = []
        for values in found.order_by("started_at", "id").values_list(*_FIELDS)[: MAX_SESSIONS + 1]:
            row = SessionRow(*values)
            if row.external_id in rows:
                continue
            if len(rows) >= MAX_SESSIONS:
                is_cut = True
                break
            rows[row.external_id] = row
            children.setdefault(row.parent_external_id, []).append(row.external_id)
            level.append(row.external_id)
        if not level:
            break
    else:
        is_cut = True
    branches: list[Branch] = []
    waiting = [(root.external_id, 0)]
    while waiting:
        name, depth = waiting.pop()
        branches.append(Branch(rows[name], depth))
        waiting += [(child, depth + 1) for child in reversed(children.get(name, []))]
    return SessionTree(tuple(branches), is_cut)


def _find(project_id: int, name: str) -> Session | None:
    return Session.objects.filter(project_id=project_id, external_id=name).first()
