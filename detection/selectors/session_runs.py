"""Reads the calls and incidents of a session in a few columns, for its minimap, and searches the texts of calls."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from time import monotonic
from typing import Any

from django.db import connection
from django.db.models import Q, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from detection.models import EventType, Incident, Session
from detection.selectors.packed_events import events_of, source_of
from detection.selectors.strips import Cell

MAX_RUN_CALLS = 50_000
"""A longer run is read from its newest calls."""
MAX_HITS = 1_000
"""A search stops at the end of the chunk in which it has found so many, and continues there."""
SEARCH_CHUNK = 1_000
"""Events that one statement of a search reads."""
SEARCH_SECONDS = 1.0
"""After this time a search stops at the end of its chunk and says how far it came."""
RUN_KEY_CHARACTERS = 12
"""Beginning of a call key that tells the calls of a run apart; with six, some of 10,000 would look repeated."""
_RUN_COLUMNS = ("seq", "type", "call_key", "flags", "call_number", "received_at")
_CALLS_OF_SESSION = """
    SELECT seq, left(call_key, %s), flags, call_number, extract(epoch FROM received_at)::float8 FROM {source}
    WHERE project_id = %s AND session_id = %s AND type = %s ORDER BY seq DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class CallRun:
    """The calls of a session in their order, and when each was received.

    Attributes
    ----------
    cells
        Without tools. A call that is not evaluated yet has the number after the one before it.
    seqs
        Sequence numbers of the cells.
    received_at
        Seconds since 1970.
    is_cut
        Whether earlier calls exist.
    """

    cells: tuple[Cell, ...]
    seqs: tuple[int, ...]
    received_at: tuple[float, ...]
    is_cut: bool


def read_run(session: Session) -> CallRun:
    """Return the newest calls of a session, at most `MAX_RUN_CALLS`; one query, by index."""
    # By hand: for ten thousand rows the rest of the ORM takes as long as the database.
    with connection.cursor() as cursor:
        source = source_of(session, EventType.CALL, columns=_RUN_COLUMNS)
        given: list[Any] = [
            RUN_KEY_CHARACTERS,
            *source.parameters,
            *session.key,
            EventType.CALL,
            MAX_RUN_CALLS + 1,
        ]
        cursor.execute(_CALLS_OF_SESSION.format(source=source.text), given)
        found = cursor.fetchall()
    is_cut, found = len(found) > MAX_RUN_CALLS, found[:MAX_RUN_CALLS]
    found.reverse()
    cells, number = [], found[0][3] - 1 if is_cut else 0
    for seq, key, flags, call_number, _ in found:
        number = call_number or number + 1
        cells.append(Cell(seq, key, flags, "", number))
    return CallRun(tuple(cells), tuple(row[0] for row in found), tuple(row[4] for row in found), is_cut)


@dataclass(frozen=True, slots=True)
class RunIncident:
    """What the map of a run shows of an incident; `unit` is empty where it is that of the detector."""

    public_id: str
    loop: str
    kind: str
    tool: str
    count: int
    limit: int
    first_seq: int
    last_seq: int
    first_call_number: int
    last_call_number: int
    ended_at: datetime | None
    unit: str


_INCIDENT_FIELDS = tuple(
    "loop__public_id" if field.name == "loop" else field.name for field in fields(RunIncident)
)


def incidents_of_run(session: Session, limit: int) -> list[RunIncident]:
    """List the incidents of a session in the order in which they began; one query."""
    # What sub-agents did is at no place of the run.
    rows = Incident.objects.filter(session=session, first_seq__gt=0).order_by("first_seq")
    stated = Coalesce(KT("evidence__detail__unit"), Value(""), output_field=TextField())
    found = rows.annotate(unit=stated).values_list(*_INCIDENT_FIELDS)[:limit]
    return [RunIncident(*row) for row in found]


@dataclass(frozen=True, slots=True)
class Hits:
    """Calls whose tool, arguments or result contain a text.

    Attributes
    ----------
    seqs
        Sequence numbers of the calls, ascending.
    searched_up_to
        Sequence number of the last event that was searched.
    is_complete
        Whether that was the last event of the session.
    """

    seqs: tuple[int, ...]
    searched_up_to: int
    is_complete: bool


def search_calls(session: Session, text: str, *, after_seq: int = 0) -> Hits:
    """Search tools, arguments and results of a session, upper and lower case alike.

    Reads the session once from `after_seq` on, by index in chunks, until its end, `MAX_HITS` calls or `SEARCH_SECONDS`.
    A result that contains the text counts for its call.
    """
    contains = Q(tool__icontains=text) | Q(arguments__icontains=text) | Q(content__icontains=text)
    deadline = monotonic() + SEARCH_SECONDS
    found: set[int] = set()
    upto = after_seq
    while upto < session.last_seq and len(found) < MAX_HITS and (upto == after_seq or monotonic() < deadline):
        chunk = events_of(
            session, EventType.CALL, EventType.RESULT, after_seq=upto, up_to_seq=upto + SEARCH_CHUNK
        )
        for seq, kind, closes in chunk.filter(contains).values_list("seq", "type", "closes"):
            if kind == EventType.CALL or closes:
                found.add(seq if kind == EventType.CALL else closes)
        upto += SEARCH_CHUNK
    upto = min(upto, session.last_seq)
    return Hits(tuple(sorted(found)), upto, upto >= session.last_seq)
