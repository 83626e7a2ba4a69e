"""The family of a locked session: found by the names of parents, locked with one row, and stored with the session.

Whoever folds a session holds that session's row first and then, in one statement and by name, the rows of its family.
Nobody waits for a session while holding a family, so neither can wait for the other in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import structlog

from detection.engine import family as engine_family
from detection.engine.family import FamilyState
from detection.engine.policy import Policy
from detection.models import Session, SessionFamily
from detection.sql.pipeline import Statement, Writes, fetch, send

log = structlog.get_logger(__name__)

MAX_LEVELS = 8
"""Generations above a session; one with more has no family."""
_SWITCHES = ("family_enabled", "family_budget_enabled", "handoff_enabled")
_ANCESTORS = (
    "WITH RECURSIVE line (name, parent, level) AS (SELECT %s::text, %s::text, 0 UNION ALL"
    " SELECT line.parent, coalesce((SELECT s.parent_external_id FROM detection_session s"
    "  WHERE s.project_id = %s AND s.external_id = line.parent), ''), line.level + 1"
    " FROM line WHERE line.parent <> '' AND line.level < %s)"
    " SELECT name, parent FROM line ORDER BY level"
)
_CREATE = (
    "INSERT INTO detection_sessionfamily (project_id, name, snapshot) VALUES (%s, %s, '')"
    " ON CONFLICT (project_id, name) DO NOTHING"
)
_LOCK = (
    "SELECT id, name, snapshot FROM detection_sessionfamily WHERE project_id = %s AND name = ANY(%s)"
    " ORDER BY name FOR NO KEY UPDATE"
)
_USED = (
    "SELECT id, call_count, token_count, cost_usd FROM detection_session"
    " WHERE project_id = %s AND external_id = ANY(%s)"
)
_SAVE = "UPDATE detection_sessionfamily SET snapshot = %s, updated_at = now() WHERE id = %s"


@dataclass(slots=True)
class LockedFamily:
    """A family whose row this transaction holds, and the rows that are merged into it."""

    row_id: int
    family: FamilyState
    merged: tuple[int, ...] = ()

    def add_writes(self, writes: Writes) -> None:
        """Add what the fold has changed."""
        writes.add(_SAVE, [self.family.dump(), self.row_id])
        if self.merged:
            writes.add("DELETE FROM detection_sessionfamily WHERE id = ANY(%s)", [[*self.merged]])


def is_watched(policy: Policy) -> bool:
    """Return whether a detector looks across families; without one, they cost nothing."""
    values = policy.values
    return any(values[name] for name in _SWITCHES)


def lock(session: Session) -> LockedFamily | None:
    """Lock the family of a locked session.

    Returns
    -------
    LockedFamily or None
        None for a session without a parent of which no child is known, for one whose ancestors form a circle, and for
        one more than `MAX_LEVELS` below the top. Costs one round trip at the top of a family, two further down, and
        once a third for what the ancestors of its first child have used.
    """
    line = _ancestors(session)
    if not line:
        return None
    project_id, top = session.project_id, line[-1]
    find = Statement(_LOCK, (project_id, line), binary=True)
    if len(line) == 1:
        (rows,) = send(find)
    else:
        _, rows = send(Statement(_CREATE, (project_id, top)), find)
    if not rows:
        return None
    families = {
        str(name): (row_id, engine_family.load(str(name), bytes(data))) for row_id, name, data in rows
    }
    row_id, family = families.pop(top, (0, FamilyState()))
    if not row_id:
        return None
    if not family.usage and len(line) > 1:
        # A parent that waits for its child makes no call meanwhile that would count it.
        for pk, calls, tokens, cost_usd in fetch(_USED, [project_id, line[1:]]):
            family.usage[str(pk)] = [calls, tokens, float(cost_usd)]
    for _, other in families.values():
        # Its session at the top had no known parent so far.
        family.merge(other)
    return LockedFamily(row_id, family, tuple(one for one, _ in families.values()))


def _ancestors(session: Session) -> list[str]:
    """Return the names from a session up to the top of its family; nothing if there is no top."""
    name, parent = session.external_id, session.parent_external_id
    if not parent:
        return [name]
    line = fetch(_ANCESTORS, [name, parent, session.project_id, MAX_LEVELS])
    names = [str(row[0]) for row in line]
    if len(set(names)) < len(names) or line[-1][1]:
        log.info("family_without_top", session=name, parent=parent)
        return []
    return names


def forget(session: Session) -> None:
    """Remove the family of a locked session: its row names agents and the session at the top. The counts begin anew."""
    names = _ancestors(session) or [session.external_id]
    SessionFamily.objects.filter(project_id=session.project_id, name__in=names).delete()


def remove_older_than(project_id: int, before: datetime) -> int:
    """Remove the families of a project of which no session was folded since then."""
    return SessionFamily.objects.filter(project_id=project_id, updated_at__lt=before).delete()[0]
