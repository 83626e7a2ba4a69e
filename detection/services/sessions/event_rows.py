"""Rows of the event table as ingest and evaluation handle them: plain values, read and written in one statement.

A model instance costs three times as much to make, which counts where every event passes. Pages read through selectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
from django.db import connection

from detection.engine.calls import Call, Result
from detection.sql.pipeline import Writes, fetch

FEW_ROWS = 4
"""Up to here rows travel with the other writes; more are copied in, at a sixth of the cost of an insert."""


@dataclass(slots=True)
class EventRow:
    """One event; see the model `Event` for what each field means. The last five are what evaluation puts on it."""

    session_id: int
    seq: int
    type: str
    call_id: str
    tool: str
    arguments: str | None
    content: str | None
    content_length: int
    tail_digest: str
    is_error: bool | None
    round: str
    run: str
    backend: str
    model: str
    agent: str
    tokens: int
    cost_usd: float | Decimal
    occurred_at: datetime | None
    received_at: datetime
    altered: str
    call_key: str = ""
    result_digest: str = ""
    flags: str = ""
    decision: str = "allow"
    verdict: dict[str, Any] | None = None


_NAMES = tuple(field.name for field in fields(EventRow))
_COLUMNS = ", ".join(_NAMES)
_COPY = f"COPY detection_event ({_COLUMNS}) FROM STDIN"
# One parameter instead of one for every column of every row: each takes its time on the way.
_INSERT = f"INSERT INTO detection_event ({_COLUMNS}) SELECT {_COLUMNS} FROM json_populate_recordset(NULL::detection_event, %s::json)"  # noqa: S608
_AFTER = f"SELECT {_COLUMNS} FROM detection_event WHERE session_id = %s AND seq > %s ORDER BY seq LIMIT %s"  # noqa: S608
_LAST = (
    f"SELECT {_COLUMNS} FROM detection_event WHERE session_id = %s AND seq <= %s ORDER BY seq DESC LIMIT %s"  # noqa: S608
)


def after(session_id: int, seq: int, limit: int) -> list[EventRow]:
    """Read the events that follow `seq`, oldest first."""
    return _made(fetch(_AFTER, [session_id, seq, limit]))


def last(session_id: int, up_to_seq: int, limit: int) -> list[EventRow]:
    """Read the newest events up to and including `up_to_seq`, oldest first."""
    return _made(reversed(fetch(_LAST, [session_id, up_to_seq, limit])))


def _made(rows: Iterable[tuple[Any, ...]]) -> list[EventRow]:
    return [EventRow(*row) for row in rows]


def add_store(writes: Writes, rows: Sequence[EventRow]) -> None:
    """Put the storing of new rows beside other writes; many of them are stored at once."""
    if len(rows) > FEW_ROWS:
        store(rows)
        return
    if rows:
        writes.add(_INSERT, [orjson.dumps(rows, default=str).decode()])


def store(rows: Sequence[EventRow]) -> None:
    """Insert rows that have their numbers."""
    if not rows:
        return
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(_COPY) as copy:
        for row in rows:
            copy.write_row(_values(row))


def _values(row: EventRow) -> list[Any]:
    values = [getattr(row, name) for name in _NAMES]
    if row.verdict is not None:
        values[-1] = orjson.dumps(row.verdict).decode()
    return values


def engine_call(event: EventRow) -> Call:
    """Return the row of a call as the engine takes it."""
    return Call(
        seq=event.seq,
        tool=event.tool,
        arguments=event.arguments,
        at=event.received_at.timestamp(),
        call_id=event.call_id,
        round=event.round or None,
        run=event.run or None,
        tokens=event.tokens,
        cost_usd=float(event.cost_usd),
    )


def engine_result(event: EventRow) -> Result:
    """Return the row of a result as the engine takes it.

    A result that was cut carries the digest of its whole text, spelled in letters, so that it is not taken for a
    volatile id: two long results that differ only behind the cut stay different.
    """
    content = event.content
    if content is not None and event.tail_digest:
        content += "\n" + event.tail_digest.translate(_HEX_AS_LETTERS)
    return Result(
        call_id=event.call_id,
        content=content,
        is_error=event.is_error,
        at=event.received_at.timestamp(),
        seq=event.seq,
    )


_HEX_AS_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")
