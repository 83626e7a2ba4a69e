"""The sessions above a sub-agent's, up to the one at the top: what it inherits, and which family it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from detection.engine.policy import Top, stored_values
from detection.models import Session
from detection.sql.pipeline import fetch

log = structlog.get_logger(__name__)

MAX_LEVELS: Final = 8
"""Generations above a session; one with more has no top."""
_LINE = (
    "WITH RECURSIVE line (name, parent, level) AS (SELECT %s::text, %s::text, 0 UNION ALL"
    " SELECT line.parent, coalesce((SELECT s.parent_external_id FROM detection_session s"
    "  WHERE s.project_id = %s AND s.external_id = line.parent), ''), line.level + 1"
    " FROM line WHERE line.parent <> '' AND line.level < %s)"
    " SELECT line.name, line.parent, s.id, s.agent, s.policy_values::text FROM line"
    " LEFT JOIN detection_session s ON line.level > 0 AND line.parent = '' AND s.project_id = %s"
    "  AND s.external_id = line.name ORDER BY line.level"
)


@dataclass(frozen=True, slots=True)
class Ancestors:
    """A session that another one started, and those above it.

    Attributes
    ----------
    names
        From the session up to the one at the top.
    top
        What the session at the top hands down.
    top_id
        The row of the session at the top; None while it is not stored.
    """

    names: tuple[str, ...]
    top: Top
    top_id: int | None


def ancestors_of(session: Session) -> Ancestors | None:
    """Return the sessions above a session; one query, and none for a session without a parent.

    Returns
    -------
    Ancestors or None
        None without a parent, for a session whose parents form a circle, and for one more than `MAX_LEVELS` below the
        top.
    """
    name, parent, project_id = session.external_id, session.parent_external_id, session.project_id
    if not parent:
        return None
    line = fetch(_LINE, [name, parent, project_id, MAX_LEVELS, project_id])
    names = tuple(str(row[0]) for row in line)
    _, above_top, top_id, agent, values = line[-1]
    if len(set(names)) < len(names) or above_top:
        log.info("family_without_top", session=name, parent=parent)
        return None
    return Ancestors(names, Top(agent or "", _stored(values)), top_id)


def top_of(session: Session) -> Top | None:
    """Return what the session at the top hands down to a session."""
    found = ancestors_of(session)
    return found.top if found else None


def _stored(values: str | None) -> Mapping[str, Any]:
    return stored_values(orjson.loads(values)) if values else {}
