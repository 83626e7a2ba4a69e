"""Reads the events of a session, whether they are rows or packed: the one place that knows both.

Packed events are a document with a list for each column, compressed. A statement reads them as if they were rows: they
take the place of the table in its `FROM`, so that conditions, order and types are the database's own.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from django.db import models
from django.db.models.sql.datastructures import BaseTable

from detection.models import Event, PackedEvents, Session, SessionKey

ROWS: Final = "json_populate_recordset(NULL::detection_event, %s::json)"
"""The rows of events in a JSON document, in place of the table."""
_FIELDS: Final = {
    str(field.column): field
    for field in Event._meta.concrete_fields
    if field.column not in ("project_id", "session_id")
}
COLUMNS: Final = tuple(_FIELDS)
"""What is packed of an event; the rest is its key."""
_LEVEL: Final = 9
"""Of compression: a twentieth smaller than the usual level, for 15 microseconds more an event."""
_IN_FULL: Final = "_packed_rows"


class EventSource(NamedTuple):
    """What follows `FROM` to read the events of a session, with its parameters; its name is `detection_event`."""

    text: str
    parameters: list[str]


@dataclass(frozen=True, slots=True)
class PackedSum:
    """Packed sessions of a project, with the sizes of their events before and now, without indexes."""

    sessions: int
    events: int
    row_bytes: int
    packed_bytes: int


def source_of(session: Session) -> EventSource:
    """Return where the events of a session are; a query if they are packed, the first time."""
    rows = _rows_of(session)
    if rows is None:
        return EventSource("detection_event", [])
    return EventSource(f"{ROWS} AS detection_event", [rows])


def events_of(session: Session) -> models.QuerySet[Event]:
    """Return the events of a session, to be filtered; a query if they are packed, the first time."""
    found = Event._base_manager.all()
    rows = _rows_of(session)
    if rows is not None:
        found.query.base_table_class = partial(_PackedTable, rows)  # type: ignore[assignment]
    return found.filter(session=session)


def packed_rows(project_id: int, session_ids: Collection[int]) -> str | None:
    """Return the events of those sessions that are packed as one document for `ROWS`; None if none is. One query."""
    found = PackedEvents.objects.filter(project_id=project_id, session_id__in=[*session_ids])
    rows = [
        row
        for session_id, columns in found.values_list("session_id", "columns")
        for row in rows_from(SessionKey(project_id, session_id), bytes(columns))
    ]
    return orjson.dumps(rows).decode() if rows else None


def packed_sum(project_id: int) -> PackedSum:
    """Return how much of a project is packed. One query, which reads no events."""
    size = models.Func("columns", function="octet_length", output_field=models.BigIntegerField())
    found = PackedEvents.objects.filter(project_id=project_id).aggregate(
        sessions=models.Count("session_id"),
        events=models.Sum("events", default=0),
        row_bytes=models.Sum("row_bytes", default=0),
        packed_bytes=models.Sum(size, default=0),
    )
    return PackedSum(**found)


def select_texts() -> str:
    """Return the expressions that read what is packed, each as a text that the database reads back as it was."""
    return ", ".join(map(_as_text, COLUMNS))


def columns_from(rows: Iterable[Sequence[str | None]]) -> bytes:
    """Pack rows of `select_texts`."""
    named = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return zlib.compress(orjson.dumps(named), _LEVEL)


def texts_from(columns: bytes) -> list[tuple[str | None, ...]]:
    """Return the rows of `select_texts` that were packed."""
    named = orjson.loads(zlib.decompress(columns))
    return [*zip(*(named[column] for column in COLUMNS), strict=True)]


def rows_from(key: SessionKey, columns: bytes) -> list[Mapping[str, Any]]:
    """Return packed events as objects for `ROWS`. A column that did not exist then has its default."""
    named: dict[str, list[Any]] = orjson.loads(zlib.decompress(columns))
    number = len(named["seq"])
    for column, field in _FIELDS.items():
        if column not in named:
            named[column] = [field.get_default()] * number
        elif isinstance(field, models.JSONField):
            named[column] = [None if one is None else orjson.Fragment(one) for one in named[column]]
    names = ("project_id", "session_id", *named)
    own = ([key.project_id] * number, [key.session_id] * number)
    return [dict(zip(names, row, strict=True)) for row in zip(*own, *named.values(), strict=True)]


def _rows_of(session: Session) -> str | None:
    """Return the packed events of a session as a document; kept with the object, as a page asks several times."""
    if session.packed_at is None:
        return None
    known: str | None = vars(session).get(_IN_FULL)
    if known is None:
        known = vars(session)[_IN_FULL] = packed_rows(session.project_id, [session.pk])
    return known


def _as_text(column: str) -> str:
    if isinstance(_FIELDS[column], models.DateTimeField):
        # Whatever the style of dates: a text of JSON is always in the form of ISO 8601.
        return f"to_json({column}) #>> '{{}}'"
    return f"{column}::text"


class _PackedTable(BaseTable):
    """Events in a document, in place of their table."""

    def __init__(self, rows: str, table_name: str, alias: str | None) -> None:
        super().__init__(table_name, alias)
        self._rows = rows

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[str | int, ...]]:
        name = compiler.quote_name_unless_alias(self.table_alias or self.table_name)
        return f"{ROWS} {name}", (self._rows,)

    def relabeled_clone(self, change_map: Mapping[str | None, str]) -> _PackedTable:
        return _PackedTable(self._rows, self.table_name, change_map.get(self.table_alias, self.table_alias))
