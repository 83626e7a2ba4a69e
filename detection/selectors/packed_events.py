"""Reads the events of a session, whether they are rows or packed: the one place that knows both.

Packed events are a document with a list for each column, compressed. A statement reads them as if they were rows: they
take the place of the table in its `FROM`, so that conditions, order and types are the database's own.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from django.db import models
from django.db.models.sql.datastructures import BaseTable

from detection.models import Event, PackedEvents, Session, SessionKey

_FIELDS: Final = {
    str(field.column): field
    for field in Event._meta.concrete_fields
    if field.column not in ("project_id", "session_id")
}
COLUMNS: Final = tuple(_FIELDS)
"""What is packed of an event; the rest is its key."""


def _as_stored(field: Any) -> str | None:
    """Return the default of a column as the database writes it; None for null."""
    default = field.get_default() if field.has_default() else None
    if isinstance(field, models.DecimalField):
        default = Decimal(default or 0).quantize(Decimal(1).scaleb(-field.decimal_places))
    return None if default is None else str(default)


_DEFAULTS: Final = {column: _as_stored(field) for column, field in _FIELDS.items()}
ROWS: Final = (
    "json_populate_recordset(json_populate_record(NULL::detection_event,"
    f" '{orjson.dumps(_DEFAULTS).decode()}'), %s::json)"
)
"""The rows of events in a JSON document, in place of the table. What a row omits has its default."""
_LEVEL: Final = 9
"""Of compression: a twentieth smaller than the usual level, for 15 microseconds more an event."""
_READ: Final = "_packed_columns"

_Columns = dict[str, list[Any]]


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


def source_of(session: Session, *types: str, columns: Sequence[str] = COLUMNS) -> EventSource:
    """Return where the events of a session are; a query if they are packed, the first time.

    Parameters
    ----------
    types, columns
        What the statement reads: of packed events, the rest may be missing.
    """
    packed = _read(session)
    if packed is None:
        return EventSource("detection_event", [])
    rows = _rows(session.key, packed, _places(packed, types), columns)
    return EventSource(f"{ROWS} AS detection_event", [orjson.dumps(rows).decode()])


def events_of(
    session: Session,
    *types: str,
    after_seq: int = 0,
    up_to_seq: int | None = None,
    closes: Collection[int] | None = None,
    first: int = 0,
    last: int = 0,
) -> models.QuerySet[Event]:
    """Return the events of a session, to be filtered further; a query if they are packed, the first time.

    Parameters
    ----------
    types
        Only events of these types; without any, all.
    after_seq, up_to_seq, closes
        Only those between these sequence numbers, and those that close one of these calls.
    first, last
        No more than so many of these are read, from the beginning or the end: packed ones need not be handed over then.
    """
    found = Event._base_manager.all()
    packed = _read(session)
    if packed is not None:
        places = _places(packed, types, after_seq, up_to_seq, closes)
        places = places[:first] if first else places[-last:] if last else places
        rows = orjson.dumps(_rows(session.key, packed, places, COLUMNS)).decode()
        found.query.base_table_class = partial(_PackedTable, rows)  # type: ignore[assignment]
    found = found.filter(session=session)
    if types:
        found = found.filter(type=types[0]) if len(types) == 1 else found.filter(type__in=types)
    if after_seq:
        found = found.filter(seq__gt=after_seq)
    if up_to_seq is not None:
        found = found.filter(seq__lte=up_to_seq)
    return found if closes is None else found.filter(closes__in=closes)


def is_packed_by_now(session: Session) -> bool:
    """Whether the events of a session were packed since its row was read, which had them as rows. One query.

    Whoever finds none where some should be asks this, and reads again.
    """
    if session.packed_at is None:
        rows = Session.objects.filter(project_id=session.project_id, pk=session.pk)
        session.packed_at = rows.values_list("packed_at", flat=True).first()
        return session.packed_at is not None
    return False


def packed_rows(
    project_id: int, session_ids: Collection[int], columns: Sequence[str] = COLUMNS
) -> str | None:
    """Return the events of those sessions that are packed as one document for `ROWS`; None if none is. One query."""
    found = PackedEvents.objects.filter(project_id=project_id, session_id__in=[*session_ids])
    rows: list[dict[str, Any]] = []
    for session_id, packed in found.values_list("session_id", "columns"):
        named = _unpacked(packed)
        rows += _rows(SessionKey(project_id, session_id), named, range(len(named["seq"])), columns)
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
    named = _unpacked(columns)
    return [*zip(*(named[column] for column in COLUMNS), strict=True)]


def _unpacked(columns: bytes | memoryview) -> _Columns:
    named: _Columns = orjson.loads(zlib.decompress(columns))
    return named


def _read(session: Session) -> _Columns | None:
    """Return the packed columns of a session; kept with the object, as a page asks several times."""
    if session.packed_at is None:
        return None
    if _READ not in vars(session):
        rows = PackedEvents.objects.filter(project_id=session.project_id, session_id=session.pk)
        packed = rows.values_list("columns", flat=True).first()
        vars(session)[_READ] = None if packed is None else _unpacked(packed)
    known: _Columns | None = vars(session)[_READ]
    return known


def _places(
    packed: _Columns,
    types: Collection[str] = (),
    after_seq: int = 0,
    up_to_seq: int | None = None,
    closes: Collection[int] | None = None,
) -> list[int]:
    """Return where the wanted events are in the columns, in their order."""
    numbers, kinds, calls = (packed[column] for column in ("seq", "type", "closes"))
    wanted = None if closes is None else {*map(str, closes)}
    return [
        place
        for place, kind in enumerate(kinds)
        if (not types or kind in types)
        and int(numbers[place]) > after_seq
        and (up_to_seq is None or int(numbers[place]) <= up_to_seq)
        and (wanted is None or calls[place] in wanted)
    ]


def _rows(
    key: SessionKey, packed: _Columns, places: Iterable[int], columns: Iterable[str]
) -> list[dict[str, Any]]:
    """Return packed events as objects for `ROWS`. A column that did not exist then has its default."""
    rows: list[dict[str, Any]] = [key._asdict() for _ in places]
    for column in columns:
        values, default = packed.get(column, ()), _DEFAULTS[column]
        is_document = isinstance(_FIELDS[column], models.JSONField)
        for row, place in zip(rows, places, strict=True) if values else ():
            value = values[place]
            if value != default:
                row[column] = orjson.Fragment(value) if is_document and value is not None else value
    return rows


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
