"""The record of an event: one shape from the parser through the fold to the table and back, and its SQL.

A model instance costs three times as much to create, which matters on the path of every event. Pages read through
selectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import takewhile
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypedDict

import orjson
from django.db import connection

from detection.engine.calls import Message
from detection.engine.scopes import MAX_NAME_CHARACTERS
from detection.integrations.labels import NO_LABELS, Labels
from detection.integrations.people import Circumstances
from detection.models import Session, SessionKey
from detection.models.events import EventType, MessageRole
from detection.models.stored_verdict import StoredVerdict
from detection.selectors.packed_events import source_of
from detection.sql.pipeline import Writes, fetch

MAX_EVENTS: Final = 1_000
"""Events of one request."""
NAME_CHARACTERS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "id": 256,
        "session": 256,
        "parent_session": 256,
        "run": 256,
        "round": 256,
        "call_id": 256,
        "tool": 128,
        "cwd": 1024,
        "backend": MAX_NAME_CHARACTERS["backend"],
        "model": MAX_NAME_CHARACTERS["model"],
        "agent": MAX_NAME_CHARACTERS["agent"],
    }
)
"""The names of an event with their longest values, as the columns hold them."""
DIGEST_CHARACTERS: Final = 128
"""Of a digest that a client sends with the beginning of a content; a keyed digest of it is stored."""
MAX_INTEGER: Final = 2**31 - 1
"""Of tokens and lengths, as the columns hold them."""
MAX_COST_USD: Final = 100_000
EARLIEST_YEAR, LATEST_YEAR = 1971, 9998
"""The database can store these years in every time zone."""
FEW_ROWS = 4
"""Up to this number, rows are sent with the other writes; more are copied, at a sixth of the cost of an insert."""
_NOT_NUMBERED = datetime.min.replace(tzinfo=UTC)
_HEX_AS_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


class SharedNames(TypedDict):
    """The names that all events of a request of the gateway have."""

    session: str
    backend: str
    model: str
    agent: str
    parent_session: str


@dataclass(slots=True)
class EventRecord:
    """One event of a session; see the model `Event` for the stored fields.

    The parser fills in what the client sent, redaction shortens texts, ingestion numbers the event under the session's
    lock, and evaluation adds what it found.

    Attributes
    ----------
    session, parent_session
        Names given by the client.
    id
        The client's id of the event, or empty.
    arguments
        Compact JSON text of the object, or the raw text that the model wrote.
    cwd
        Of a call: the directory in which it runs, or empty. Stored with the arguments, or not at all.
    content
        Text of a result or message, a JSON result as compact JSON text; of an end its outcome.
    assigned
        The names that the client did not give, of those that ingestion adds.
    arguments_digest
        Keyed digest of the arguments of a call, or of those that a result names instead of a call id.
    closes
        Of a result: the sequence number of its call; of a usage: of the first call of its round; 0 if there is none.
    role
        Of a message: who wrote it; empty is the user.
    circumstances
        Of a message in a list: how it came, which decides whether a person wrote it.
    labels
        Tags and metadata for the session.
    altered
        Comma-separated marks of what the parser changed, such as ``nul``.
    received_at
        Server time at which the event was numbered.
    """

    type: str
    call_id: str = ""
    tool: str = ""
    arguments: str | None = None
    cwd: str = ""
    content: str | None = None
    is_error: bool | None = None
    role: str = ""
    round: str = ""
    run: str = ""
    backend: str = ""
    model: str = ""
    agent: str = ""
    tokens: int = 0
    cost_usd: float = 0.0
    occurred_at: datetime | None = None
    altered: str = ""

    arguments_digest: str = ""
    closes: int = 0
    content_length: int = 0
    tail_digest: str = ""

    session_id: int = 0
    seq: int = 0
    received_at: datetime = _NOT_NUMBERED

    call_key: str = ""
    result_digest: str = ""
    flags: str = ""
    decision: str = "allow"
    call_number: int = 0
    reply: str = ""
    verdict: StoredVerdict | None = None

    session: str = ""
    parent_session: str = ""
    id: str = ""
    labels: Labels = NO_LABELS
    circumstances: Circumstances | None = None
    assigned: tuple[str, ...] = ()

    @property
    def is_of_user(self) -> bool:
        """Whether a person wrote this message."""
        return self.role in ("", MessageRole.USER)

    @property
    def message(self) -> Message | None:
        """The message or compaction as the engine reads it; None for other events and for texts of programs."""
        if self.type == EventType.COMPACTION:
            return Message(self.at, "condense", self.seq)
        if self.type != EventType.MESSAGE or self.role in (MessageRole.SYSTEM, MessageRole.PROGRAM):
            return None
        # Of a text that was sent as a digest only, the digest tells whether it is the same.
        text = self.content or self.tail
        return Message(self.at, "user" if self.is_of_user else "assistant", self.seq, text)

    def without_payload(self) -> EventRecord:
        """Return a copy without what a project that stores digests only does not keep."""
        return replace(self, arguments=None, content=None, cwd="")

    @property
    def at(self) -> float:
        """Server time in Unix seconds, as the engine counts it."""
        return self.received_at.timestamp()

    @property
    def tail(self) -> str:
        """The digest of the cut end of a long text, in letters, so that masking of volatile ids does not match it."""
        return self.tail_digest.translate(_HEX_AS_LETTERS)


_NAMES = tuple(takewhile(lambda name: name != "session", (field.name for field in fields(EventRecord))))
"""What is stored, in the order of the fields; the verdict is the last of it."""
_values = attrgetter(*_NAMES)
_of_row: Callable[..., EventRecord] = EventRecord
"""Only rows give the fields by their order: by name it takes a twentieth of a worker's time."""
_COLUMNS = ", ".join(_NAMES)
_SELECTED = _COLUMNS.replace("cost_usd", "cost_usd::float8")
_COPY = f"COPY detection_event (project_id, {_COLUMNS}) FROM STDIN"
# One parameter instead of one for every column of every row: each takes its time on the way.
_INSERT = (
    f"INSERT INTO detection_event (project_id, {_COLUMNS}) SELECT %s, {_COLUMNS}"  # noqa: S608
    " FROM json_populate_recordset(NULL::detection_event, %s::json) WHERE true"
)
# Citus passes this on, but reads a SELECT first, copies its rows, and commits in two steps.
_INSERT_ONE = f"INSERT INTO detection_event (project_id, {_COLUMNS}) VALUES (%s{', %s' * len(_NAMES)})"  # noqa: S608
_OF_SESSION = f"SELECT {_SELECTED} FROM detection_event WHERE project_id = %s AND session_id = %s"  # noqa: S608
_AFTER = f"{_OF_SESSION} AND seq > %s ORDER BY seq LIMIT %s"
_LAST = f"{_OF_SESSION} AND seq <= %s ORDER BY seq DESC LIMIT %s"


def after(key: SessionKey, seq: int, limit: int) -> list[EventRecord]:
    """Read the events that follow `seq`, oldest first."""
    return _records(fetch(_AFTER, [*key, seq, limit]))


def last(key: SessionKey, up_to_seq: int, limit: int) -> list[EventRecord]:
    """Read the newest events up to and including `up_to_seq`, oldest first."""
    return _records(reversed(fetch(_LAST, [*key, up_to_seq, limit])))


def packed(session: Session) -> list[EventRecord] | None:
    """Read the packed events of a session, oldest first; None if they are not packed. Some thousand at most."""
    source = source_of(session)
    if not source.parameters:
        return None
    return _records(fetch(f"SELECT {_SELECTED} FROM {source.text} ORDER BY seq", source.parameters))  # noqa: S608


def _records(rows: Iterable[tuple[Any, ...]]) -> list[EventRecord]:
    return [_of_row(*values, StoredVerdict.load(verdict) if verdict else None) for *values, verdict in rows]


def add_store(writes: Writes, project_id: int, events: Sequence[EventRecord]) -> None:
    """Add the write of new events; many of them are stored at once."""
    if len(events) > FEW_ROWS:
        store(project_id, events)
    elif writes.has_nodes:
        for *values, verdict in map(_values, events):
            row = [project_id, *values, verdict.dump() if verdict else None]
            writes.add(_INSERT_ONE, row, ends_in_condition=True)
    elif events:
        writes.add(_INSERT, [project_id, orjson.dumps(events, default=str).decode()], ends_in_condition=True)


def store(project_id: int, events: Sequence[EventRecord]) -> None:
    """Insert events of a project that have their numbers."""
    if not events:
        return
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(_COPY) as copy:
        for *values, verdict in map(_values, events):
            copy.write_row([project_id, *values, verdict.dump() if verdict else None])
