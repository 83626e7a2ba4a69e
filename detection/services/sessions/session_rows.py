"""SQL for session rows: locks them, creates them and writes them back. Used by this package alone.

The statements are built once: building the same query through the ORM for every call costs five times what the database
needs to answer it. Rows come back as ordinary model instances with their project.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

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


def lock_by_id(session_id: int, *, wait: bool = True) -> Session | None:
    """Lock one session by its row id.

    Parameters
    ----------
    wait
        False: return None when another transaction holds the lock.
    """
    rows = _fetch(f"s.id = %s FOR UPDATE OF s{'' if wait else ' SKIP LOCKED'}", session_id)
    return rows[0] if rows else None


def lock_by_name(project_id: int, external_id: str) -> Session | None:
    """Lock one session by its name in the project."""
    return lock_by_names(project_id, [external_id]).get(external_id)


def lock_by_names(project_id: int, names: list[str]) -> dict[str, Session]:
    """Lock the sessions of these names that exist, in one order, so that batches cannot deadlock."""
    rows = _fetch(
        "s.project_id = %s AND s.external_id = ANY(%s) ORDER BY s.external_id FOR UPDATE OF s",
        project_id,
        names,
    )
    return {row.external_id: row for row in rows}


def lock_or_create(principal: Principal, names: Iterable[str]) -> dict[str, Session]:
    """Lock the sessions of these names and create those that do not exist; always in one order."""
    ordered = sorted(set(names))
    found = lock_by_names(principal.project_id, ordered)
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
        found |= lock_by_names(principal.project_id, missing)
    return {name: found[name] for name in ordered}


SAVED = (
    "state", "outcome", "ended_at", "last_seq", "evaluated_seq", "pending_since", "call_count", "blocked_count",
    "token_count", "cost_usd", "last_tool", "meter_kind", "meter_count", "meter_limit", "strip", "policy_values", "quarantined",
    "agent", "backend", "model", "parent_external_id", "last_event_at", "stopped_by_kind", "stopped_at", "stopped_by",
    "stop_reason", "would_have_stopped_at_call", "has_active_incident", "exempt_tools",
)  # fmt: skip
"""The columns that `add_save` writes: all that changes after a session was created, but for the change cursor."""
_JSON_COLUMNS = frozenset({"strip", "policy_values", "quarantined", "exempt_tools"})
_SAVE = (
    f"UPDATE detection_session SET {', '.join(f'{name} = %s' for name in SAVED)},"  # noqa: S608 - columns of our own
    " changed_xid = pg_current_xact_id()::text::bigint WHERE id = %s"
)
_values = attrgetter(*SAVED)


def saved_values(session: Session) -> list[Any]:
    """Return the values of `SAVED` as they are stored."""
    return [
        orjson.dumps(value).decode() if name in _JSON_COLUMNS else value
        for name, value in zip(SAVED, _values(session), strict=True)
    ]


def add_save(writes: Writes, session: Session, values: list[Any]) -> None:
    """Add the write of a locked session's row, from `saved_values`; moves the change cursor of the live pages."""
    writes.add(_SAVE, [*values, session.pk])


def save_received(sessions: Iterable[Session]) -> None:
    """Write what storing new events changes of the locked sessions, in one statement; they wait for evaluation from then on."""
    rows = [*sessions]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE detection_session s SET last_seq = v.last_seq, agent = v.agent, backend = v.backend, model = v.model,"
            " parent_external_id = v.parent, last_event_at = now(), changed_xid = pg_current_xact_id()::text::bigint,"
            " pending_since = CASE WHEN s.evaluated_seq < v.last_seq THEN coalesce(s.pending_since, now()) ELSE s.pending_since END"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[])"
            " AS v (id, last_seq, agent, backend, model, parent) WHERE s.id = v.id",
            [
                [row.pk for row in rows],
                [row.last_seq for row in rows],
                [row.agent for row in rows],
                [row.backend for row in rows],
                [row.model for row in rows],
                [row.parent_external_id for row in rows],
            ],
        )
