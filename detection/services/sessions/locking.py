"""Takes the row locks that order everything that happens to a session, and writes the locked rows back.

The statements are made once: building the same query through the ORM for every call costs five times what the database
needs to answer it. Rows come back as ordinary model instances with their project.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from django.db import connection, models

from detection.models import Project, Session
from detection.services.keys import Principal
from detection.sql.pipeline import Writes, fetch


class _Reader:
    """Builds instances of a model from rows of plain columns, converting as the ORM would."""

    def __init__(self, model: type[models.Model], alias: str) -> None:
        fields = model._meta.concrete_fields
        self.model = model
        self.columns = ", ".join(f'{alias}."{field.column}"' for field in fields)
        self.names = [field.attname for field in fields]
        self._json_at = [index for index, field in enumerate(fields) if isinstance(field, models.JSONField)]

    def instance(self, values: tuple[object, ...]) -> models.Model:
        row = list(values)
        for index in self._json_at:
            if isinstance(row[index], str):
                row[index] = orjson.loads(str(row[index]))
        return self.model.from_db("default", self.names, row)


_session, _project = _Reader(Session, "s"), _Reader(Project, "p")
_SELECT = (
    f"SELECT {_session.columns}, {_project.columns}"  # noqa: S608 - columns of our own models
    " FROM detection_session s JOIN detection_project p ON p.id = s.project_id WHERE"
)


def _fetch(condition: str, *parameters: str | int | list[str]) -> list[Session]:
    found = fetch(f"{_SELECT} {condition}", parameters)
    sessions = []
    width = len(_session.names)
    for row in found:
        session = _session.instance(row[:width])
        assert isinstance(session, Session)  # noqa: S101 - says to the type checker what _Reader was made for
        session.project = _project.instance(row[width:])  # type: ignore[assignment]
        sessions.append(session)
    return sessions


def lock_session(session_id: int, *, wait: bool = True) -> Session | None:
    """Lock one session by its row id.

    Parameters
    ----------
    wait
        False: return None when somebody else holds it.
    """
    rows = _fetch(f"s.id = %s FOR UPDATE OF s{'' if wait else ' SKIP LOCKED'}", session_id)
    return rows[0] if rows else None


def lock_sessions(principal: Principal, names: Iterable[str]) -> dict[str, Session]:
    """Lock the named sessions, making those that are new; always in one order, so that batches cannot deadlock."""
    ordered = sorted(set(names))
    found = _lock_known(principal.project_id, ordered)
    missing = [name for name in ordered if name not in found]
    if missing:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO detection_session (project_id, external_id, is_demo, agent, backend, model, parent_external_id,"
                " state, outcome, last_seq, evaluated_seq, call_count, blocked_count, token_count, cost_usd, last_tool,"
                " meter_kind, meter_count, meter_limit, strip, policy_values, stopped_by, stop_reason, quarantined)"
                " SELECT %s, name, %s, '', '', '', '', 'running', '', 0, 0, 0, 0, 0, 0, '', '', 0, 0, '[]', '{}', '', '', '[]'"
                " FROM unnest(%s::text[]) AS name ORDER BY name ON CONFLICT (project_id, external_id) DO NOTHING",
                [principal.project_id, principal.is_demo, missing],
            )
        found |= _lock_known(principal.project_id, missing)
    return {name: found[name] for name in ordered}


def _lock_known(project_id: int, names: list[str]) -> dict[str, Session]:
    rows = _fetch(
        "s.project_id = %s AND s.external_id = ANY(%s) ORDER BY s.external_id FOR UPDATE OF s",
        project_id,
        names,
    )
    return {row.external_id: row for row in rows}


UPDATED = (
    "state", "outcome", "ended_at", "last_seq", "evaluated_seq", "pending_since", "call_count", "blocked_count",
    "token_count", "cost_usd", "last_tool", "meter_kind", "meter_count", "meter_limit", "strip", "policy_values", "quarantined",
    "agent", "backend", "model", "parent_external_id", "last_event_at",
)  # fmt: skip
"""What evaluation may change of a session."""
_AS_JSON = frozenset({"strip", "policy_values", "quarantined"})
_UPDATE = (
    f"UPDATE detection_session SET {', '.join(f'{name} = %s' for name in UPDATED)},"  # noqa: S608 - columns of our own
    " changed_xid = pg_current_xact_id()::text::bigint WHERE id = %s"
)


def add_write(writes: Writes, session: Session) -> None:
    """Put the writing of what evaluation changed of a locked session beside other writes.

    The row is marked as changed for the live pages.
    """
    values = [getattr(session, name) for name in UPDATED]
    for index, name in enumerate(UPDATED):
        if name in _AS_JSON:
            values[index] = orjson.dumps(values[index]).decode()
    writes.add(_UPDATE, [*values, session.pk])
