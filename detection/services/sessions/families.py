"""The family of a locked session: found by the names of parents, locked with one row, and stored with the session.

Whoever folds a session holds that session's row first and then, in one statement and by name, the rows of its family.
Nobody waits for a session while holding a family, so neither can wait for the other in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from detection.engine import family as engine_family
from detection.engine.family import FamilyState
from detection.engine.policy import Policy
from detection.models import Session, SessionFamily
from detection.selectors.ancestors import Ancestors, ancestors_of
from detection.sql.pipeline import Statement, Writes, fetch, send

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
# The condition of the index of parents is named; each of the lateral parts is one look-up.
_WAITING = (
    "WITH RECURSIVE member AS ("  # noqa: S608 - a constant
    "SELECT id, external_id, evaluated_seq, last_seq FROM detection_session"
    " WHERE project_id = %s AND (external_id = %s OR (parent_external_id = %s AND parent_external_id <> ''))"
    " UNION SELECT s.* FROM member m CROSS JOIN LATERAL (SELECT id, external_id, evaluated_seq, last_seq"
    " FROM detection_session WHERE project_id = %s AND parent_external_id = m.external_id"
    " AND parent_external_id <> '') s)"
    f" SELECT m.id, e.received_at FROM (SELECT * FROM member LIMIT {engine_family.MAX_MEMBERS}) m"
    " CROSS JOIN LATERAL (SELECT received_at FROM detection_event"
    " WHERE project_id = %s AND session_id = m.id AND seq = m.evaluated_seq + 1 LIMIT 1) e"
    " WHERE m.evaluated_seq < m.last_seq AND m.id <> %s ORDER BY e.received_at, m.id"
)
_SAVE = (
    "UPDATE detection_sessionfamily SET snapshot = %s, updated_at = now() WHERE project_id = %s AND id = %s"
)


@dataclass(slots=True)
class LockedFamily:
    """A family whose row this transaction holds, and the rows that are merged into it."""

    project_id: int
    row_id: int
    family: FamilyState
    merged: tuple[int, ...] = ()

    def add_writes(self, writes: Writes) -> None:
        """Add what the fold has changed."""
        writes.add(_SAVE, [self.family.dump(), self.project_id, self.row_id])
        if self.merged:
            text = "DELETE FROM detection_sessionfamily WHERE project_id = %s AND id = ANY(%s)"
            writes.add(text, [self.project_id, [*self.merged]])


def is_watched(policy: Policy) -> bool:
    """Return whether a detector looks across families; without one, they cost nothing."""
    values = policy.values
    return bool(values["family_enabled"] or values["family_budget_enabled"] or values["handoff_enabled"])


def grows(session: Session, tool: str, policy: Policy) -> bool:
    """Return whether a call may show a new sub-agent: it starts one, or it is the first call of one.

    Only with such a call is a family locked that no detector watches otherwise.
    """
    if not policy.values["spawns_enabled"]:
        return False
    is_first = bool(session.parent_external_id) and not session.call_count
    return is_first or policy.for_tool(tool).traits.starts_agents


Waiting = list[tuple[int, datetime]]
"""Sessions of a family that wait for evaluation, and when the first event that they wait for was received."""


def lock(
    session: Session, ancestors: Ancestors | None, *, starts: bool = False
) -> tuple[LockedFamily | None, Waiting]:
    """Lock the family of a locked session, of which `ancestors` are known.

    Returns
    -------
    LockedFamily or None
        None for a session without a parent of which no child is known, unless it `starts` one, for one whose ancestors
        form a circle, and for one too far below the top. Costs one round trip, and once a second one for what the
        ancestors of its first child have used.
    Waiting
        The other sessions of the family that wait for evaluation, also if nothing is locked because none of them was
        evaluated yet.
    """
    line = _line(session, ancestors)
    if not line:
        return None, []
    project_id, top = session.project_id, line[-1]
    find = Statement(_LOCK, (project_id, line), binary=True)
    others = Statement(_WAITING, (project_id, top, top, project_id, project_id, session.pk))
    if len(line) == 1 and not starts:
        rows, waiting = send(find, others)
    else:
        _, rows, waiting = send(Statement(_CREATE, (project_id, top)), find, others)
    if not rows:
        return None, waiting
    families = {
        str(name): (row_id, engine_family.load(str(name), bytes(data))) for row_id, name, data in rows
    }
    row_id, family = families.pop(top, (0, FamilyState()))
    if not row_id:
        return None, waiting
    if not family.usage and len(line) > 1:
        # A parent that waits for its child makes no call meanwhile that would count it.
        for pk, calls, tokens, cost_usd in fetch(_USED, [project_id, line[1:]]):
            family.usage[str(pk)] = [calls, tokens, float(cost_usd)]
    for _, other in families.values():
        # Its session at the top had no known parent so far.
        family.merge(other)
    merged = tuple(one for one, _ in families.values())
    return LockedFamily(project_id, row_id, family, merged), waiting


def _line(session: Session, ancestors: Ancestors | None) -> list[str]:
    """Return the names from a session up to the top of its family; nothing if there is no top."""
    if ancestors is not None:
        return [*ancestors.names]
    return [] if session.parent_external_id else [session.external_id]


def forget(session: Session) -> None:
    """Remove the family of a locked session: its row names agents and the session at the top. The counts begin anew."""
    names = _line(session, ancestors_of(session)) or [session.external_id]
    SessionFamily.objects.filter(project_id=session.project_id, name__in=names).delete()


def remove_older_than(project_id: int, before: datetime) -> int:
    """Remove the families of a project of which no session was folded since then."""
    return SessionFamily.objects.filter(project_id=project_id, updated_at__lt=before).delete()[0]
