"""SQL for session rows: locks them, creates them and writes them back. Used by this package alone.

The statements are built once: building the same query through the ORM for every call costs five times what the database
needs to answer it. Rows come back as ordinary model instances with their project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
from django.db import connection, models
from django.utils import timezone

from detection.models import Project, Session, SessionKey
from detection.services.keys import Principal
from detection.services.sessions.recent_ids import recent_ids
from detection.sql.pipeline import Rows, Statement, Writes, send


class _Reader:
    """Reads the columns of a model from rows, converting as the ORM would."""

    def __init__(self, model: type[models.Model], alias: str) -> None:
        fields = model._meta.concrete_fields
        self.columns = ", ".join(f'{alias}."{field.column}"' for field in fields)
        self.names = [field.attname for field in fields]
        self._json_at = [index for index, field in enumerate(fields) if isinstance(field, models.JSONField)]

    def values(self, columns: tuple[object, ...]) -> list[object]:
        values = list(columns)
        for index in self._json_at:
            if isinstance(values[index], str):
                values[index] = orjson.loads(str(values[index]))
        return values


_session, _project = _Reader(Session, "s"), _Reader(Project, "p")
_SELECT = (
    f"SELECT {_session.columns}, {_project.columns}, p.xmin::text"  # noqa: S608 - columns of our own models
    " FROM detection_session s JOIN detection_project p ON p.id = s.project_id WHERE"
)
_LOCK = "FOR NO KEY UPDATE OF s"
"""The key of a session never changes, so other transactions may insert rows that refer to it."""
_KEY = "s.project_id = %s AND s.id = %s"
_VERSIONS = (
    "SELECT s.ctid::text, s.xmin::text, p.xmin::text, t.xmin::text FROM detection_session s"
    " JOIN detection_project p ON p.id = s.project_id"
    " JOIN detection_trackerstate t ON t.project_id = s.project_id AND t.session_id = s.id"
)
_LOCK_KNOWN = f"{_VERSIONS} WHERE {_KEY} AND s.external_id = %s {_LOCK}"
_HAS_NONE = (
    " AND NOT EXISTS (SELECT FROM detection_event e WHERE e.project_id = %s AND e.session_id = %s"
    " AND e.call_id = ANY(%s) AND e.seq <= %s AND e.type IN ('call', 'result'))"
)
_CREATE = (
    "INSERT INTO detection_session (project_id, external_id, is_demo, agent, backend, model, parent_external_id,"
    " state, outcome, last_seq, evaluated_seq, call_count, blocked_count, token_count, cost_usd, last_tool,"
    " meter_kind, meter_count, meter_limit, strip, policy_values, stopped_by, stop_reason)"
)
_NEW = "%s, {}, %s, '', '', '', '', 'running', '', 0, 0, 0, 0, 0, 0, '', '', 0, 0, '[]', '{{}}', '', ''"
_UNLESS_THERE = "ON CONFLICT (project_id, external_id) DO NOTHING"
# Citus passes this on; the rows of a SELECT it would read first, copy, and commit in two steps.
_CREATE_ONE = f"{_CREATE} VALUES ({_NEW.format('%s')}) {_UNLESS_THERE}"
_CREATE_MANY = (
    f"{_CREATE} SELECT {_NEW.format('name')} FROM unnest(%s::text[]) AS name"  # noqa: S608 - constants
    f" ORDER BY name {_UNLESS_THERE}"
)


class RowVersions(NamedTuple):
    """By which this process knows that nobody else has written a session since.

    Attributes
    ----------
    place
        Where its row is, as in ``ctid``.
    session, project, tracker
        The transactions, as in ``xmin``, that wrote its row, its project's row and its tracker state.
    """

    place: str
    session: str
    project: str
    tracker: str


class KnownRows(NamedTuple):
    """What this process knows of a session that it wrote last.

    Attributes
    ----------
    key
        Of its row.
    versions
        Of its row, and of those that belong to it.
    new_ids, after_seq
        Call ids of which it has no event up to this sequence number.
    """

    key: SessionKey
    versions: RowVersions
    new_ids: Sequence[str]
    after_seq: int


def by_key(key: SessionKey, *, wait: bool = True) -> Statement:
    """Return the statement that locks one session by the key of its row.

    Parameters
    ----------
    wait
        False: find nothing when another transaction holds the lock.
    """
    return Statement(f"{_SELECT} {_KEY} {_LOCK}{'' if wait else ' SKIP LOCKED'}", key)


def by_name(project_id: int, external_id: str) -> Statement:
    """Return the statement that locks one session by its name in the project."""
    return Statement(f"{_SELECT} s.project_id = %s AND s.external_id = %s {_LOCK}", (project_id, external_id))


def by_known_key(key: SessionKey, external_id: str) -> Statement:
    """Return the statement that locks a session which this process knows, and reads the versions of its rows only.

    The tracker state is written with the session. Where another transaction did so while this one waited for the lock,
    its version dates from before the wait, but that of the session does not.
    """
    return Statement(_LOCK_KNOWN, (*key, external_id))


def by_known_rows(known: KnownRows) -> Statement:
    """Return the statement that locks such a session and returns its versions, or nothing if it has other events."""
    text, parameters = f"{_VERSIONS} WHERE {_KEY}", [*known.key]
    if known.new_ids:
        text, parameters = f"{text}{_HAS_NONE}", [*parameters, *_none_of(known)]
    return Statement(f"{text} {_LOCK}", parameters)


def create(principal: Principal, names: list[str]) -> Statement:
    """Return the statement that creates those sessions of these names that do not exist, though each takes a number."""
    if len(names) == 1:
        return Statement(_CREATE_ONE, (principal.project_id, names[0], principal.is_demo))
    return Statement(_CREATE_MANY, (principal.project_id, principal.is_demo, names))


def sessions_of(rows: Rows) -> list[Session]:
    """Return the sessions that such a statement has locked, each with its project."""
    sessions = []
    width, end = len(_session.names), len(_session.names) + len(_project.names)
    for row in rows:
        session = Session.from_db("default", _session.names, _session.values(row[:width]))
        session.project = Project.from_db("default", _project.names, _project.values(row[width:end]))
        sessions.append(session)
    return sessions


def project_version(rows: Rows) -> str:
    """Return the version of the project's row that such a statement has read with a session."""
    return str(rows[0][-1])


def lock_or_create(principal: Principal, names: Iterable[str]) -> dict[str, Session]:
    """Lock the sessions of these names, or create them, in one order, so that batches cannot deadlock.

    Several sessions are created before any is locked, as far as this process does not know them: a transaction that
    waits for the creation of a session holds no other one, which would allow a deadlock.
    """
    project_id, ordered = principal.project_id, sorted(set(names))
    lock = Statement(
        f"{_SELECT} s.project_id = %s AND s.external_id = ANY(%s) ORDER BY s.external_id {_LOCK}",
        (project_id, ordered),
    )
    unknown = [name for name in ordered if recent_ids.get(project_id, name) is None]
    missing = unknown if len(ordered) > 1 else []
    while True:  # a session can be removed between both statements
        *_, rows = send(create(principal, missing), lock) if missing else send(lock)
        found = {session.external_id: session for session in sessions_of(rows)}
        if len(found) == len(ordered):
            break
        missing = [name for name in ordered if name not in found]
    for name in unknown:
        recent_ids.put(project_id, name, found[name].pk)
    return found


COUNTED = (
    "last_seq", "evaluated_seq", "call_count", "token_count", "cost_usd", "last_tool", "meter_kind", "meter_count",
    "meter_limit", "call_reaches", "has_open_call", "strip", "last_event_at",
)  # fmt: skip
"""The columns that nearly every call changes."""
OTHERS = (
    "state", "outcome", "ended_at", "pending_since", "blocked_count", "warned_count", "policy_values", "agent",
    "backend", "model", "parent_external_id", "stopped_by_kind", "stopped_at", "stopped_by", "stop_reason",
    "would_have_stopped_at_call", "has_active_incident", "exempt_tools", "integration", "started_at",
    "silence_check_at", "reach", "api_key", "tags", "metadata", "last_loop_call_at", "stop_reach",
    "refused_since_stop", "ran_since_stop", "has_run_last", "seen_reach",
)  # fmt: skip
"""What else changes after a session was created, besides the change cursor."""
_WRITTEN = "changed_xid = pg_current_xact_id()::text::bigint"
_RETURNED = "RETURNING s.ctid::text, s.xmin::text"
_SET_COUNTED = f"SET {', '.join(f'{name} = %s' for name in COUNTED)}, {_WRITTEN}"
_SAVE_COUNTED = f"UPDATE detection_session s {_SET_COUNTED} WHERE {_KEY} {_RETURNED}"
# Found by its place: until a table was analyzed, the planner may take any index that begins with the project instead of
# that of the key, and read all sessions of the project for each call.
_SAVE_KNOWN = (
    f"UPDATE detection_session s {_SET_COUNTED} FROM detection_project p, detection_trackerstate t"
    f" WHERE {_KEY} AND s.ctid = %s::tid AND s.xmin = %s::xid AND p.id = s.project_id AND p.xmin = %s::xid"
    " AND t.project_id = s.project_id AND t.session_id = s.id AND t.xmin = %s::xid"
)
# One parameter instead of one for every column, of which each takes its time on the way.
_SAVE = (
    f"UPDATE detection_session s SET {', '.join(f'{name} = v.{name}' for name in (*COUNTED, *OTHERS))}, {_WRITTEN}"  # noqa: S608
    f" FROM json_populate_record(NULL::detection_session, %s::json) AS v WHERE {_KEY} {_RETURNED}"
)
_counted, _others = attrgetter(*COUNTED), attrgetter(*OTHERS)


class SavedValues(NamedTuple):
    """The values of a session's row that change: `COUNTED` as parameters, and `OTHERS` as a JSON object."""

    counted: tuple[Any, ...]
    others: bytes


def saved_values(session: Session) -> SavedValues:
    """Return the values of a session's row as they are now."""
    *counts, strip, last_event_at = _counted(session)
    # A cost is a decimal where it was read, and a float where it was counted: as text, both are sent alike.
    parameters = [value if type(value) is int else str(value) for value in counts]
    counted = (*parameters, orjson.dumps(strip).decode(), str(last_event_at))
    return SavedValues(counted, orjson.dumps(dict(zip(OTHERS, _others(session), strict=True)), default=str))


def add_save(writes: Writes, session: Session, before: SavedValues, values: SavedValues) -> None:
    """Add the write of a locked session's row, from `saved_values`; moves the change cursor of the live pages.

    It must be the last write: it returns the version of the row, which is that of all rows that the transaction writes.
    """
    if values.others == before.others:
        writes.add(_SAVE_COUNTED, [*values.counted, *session.key])
        return
    document = orjson.loads(values.others) | dict(zip(COUNTED, _counted(session), strict=True))
    writes.add(_SAVE, [orjson.dumps(document, default=str).decode(), *session.key])


def save_if_known(known: KnownRows, before: SavedValues, values: SavedValues) -> Statement | None:
    """Return the same write for a session that was not locked: it writes nothing if anything else was written since.

    Returns
    -------
    Statement or None
        None if other columns than those of `COUNTED` change.
    """
    if values.others != before.others:
        return None
    text, parameters = _SAVE_KNOWN, [*values.counted, *known.key, *known.versions]
    if known.new_ids:
        text, parameters = f"{text}{_HAS_NONE}", [*parameters, *_none_of(known)]
    return Statement(f"{text} {_RETURNED}", parameters)


def _none_of(known: KnownRows) -> list[Any]:
    return [*known.key, [*known.new_ids], known.after_seq]


def save_received(project_id: int, sessions: Iterable[Session]) -> None:
    """Write what storing new events changes of the locked sessions, in one statement; they then wait for evaluation."""
    rows = [*sessions]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE detection_session s SET last_seq = v.last_seq, agent = v.agent, backend = v.backend,"
            " model = v.model,"
            " parent_external_id = v.parent, integration = v.integration, api_key = v.api_key, last_event_at = now(),"
            " changed_xid = pg_current_xact_id()::text::bigint,"
            " pending_since = CASE WHEN s.evaluated_seq < v.last_seq"
            " THEN coalesce(s.pending_since, %s::timestamptz) ELSE s.pending_since END"
            " FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],"
            " %s::text[]) AS v (id, last_seq, agent, backend, model, parent, integration, api_key)"
            " WHERE s.project_id = %s AND s.id = v.id",
            [
                timezone.now(),
                [row.pk for row in rows],
                [row.last_seq for row in rows],
                [row.agent for row in rows],
                [row.backend for row in rows],
                [row.model for row in rows],
                [row.parent_external_id for row in rows],
                [row.integration for row in rows],
                [row.api_key for row in rows],
                project_id,
            ],
        )
