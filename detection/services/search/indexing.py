"""Indexes the texts of evaluated events in the background, at no cost for guarded calls.

How far a session is indexed is in its newest block, which changes in the same transaction. New events are added to the
newest block as long as its signature is not full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from django.db import connection
from django.db.models import F
from django.db.models.functions import Least

from detection.filtering.signatures import MAX_FILL, folded, pieces_of, size_for, with_pieces
from detection.models import IndexingCursor, Project, SessionKey
from detection.selectors.packed_events import ROWS, packed_rows
from detection.services.events.touched_sessions import Place, walk
from detection.sql.advisory_locks import AdvisoryLock

BATCH_SESSIONS: Final = 200
BATCH_EVENTS: Final = 2_000
"""Events whose texts a process holds at a time: 128 MB at most, some hundred kilobytes usually."""
MAX_SESSIONS: Final = 100_000
"""Of a run."""
BLOCK_EVENTS: Final = 128
"""Events of a block, which a search reads if its signature says "perhaps": fewer make more rows, more read slowly."""
PART_CHARACTERS: Final = 6_000
"""Characters that are read at once: pieces are counted once for all of them, which takes a third of the time that
single texts do, and they have about 1,500 different ones. Each of the longer signatures takes two or three times as
many."""
BATCH_BLOCKS: Final = 5_000

_TOUCHED = """
SELECT s.project_id, s.id, s.evaluated_seq, s.changed_xid,
    concat_ws(chr(10), s.external_id, s.agent, s.backend, s.model),
    b.first_seq, coalesce(b.last_seq, 0), b.calls, b.bare_calls, b.events, b.bits, b.signature
FROM detection_session s LEFT JOIN LATERAL (
    SELECT * FROM detection_searchblock b WHERE b.project_id = %(project)s AND b.session_id = s.id
    ORDER BY b.first_seq DESC LIMIT 1
) b ON true
WHERE s.project_id = %(project)s AND s.changed_xid >= %(seen)s AND (s.changed_xid, s.id) > (%(xid)s, %(id)s)
  AND s.evaluated_seq > coalesce(b.last_seq, 0)
ORDER BY s.changed_xid, s.id LIMIT %(limit)s
"""
_EVENTS = """
SELECT e.session_id, e.seq, e.type, e.tool, e.arguments, e.content, CASE WHEN e.tool = '' THEN e.closes ELSE 0 END
FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS d (session_id, after, upto)
JOIN {events} e ON e.project_id = %s AND e.session_id = d.session_id AND e.seq > d.after AND e.seq <= d.upto
WHERE e.type = ANY ('{{call,result,message}}'::text[]) ORDER BY e.session_id, e.seq
"""
_TOOLS = """
SELECT e.session_id, e.seq, e.tool
FROM unnest(%s::bigint[], %s::int[]) AS d (session_id, seq)
JOIN detection_event e ON e.project_id = %s AND e.session_id = d.session_id AND e.seq = d.seq
"""
_STORE = """
INSERT INTO detection_searchblock
    (project_id, session_id, first_seq, last_seq, calls, bare_calls, events, bits, signature)
SELECT %s, * FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::int[], %s::int[], %s::int[], %s::int[], %s::bytea[])
ON CONFLICT (project_id, session_id, first_seq) DO UPDATE SET last_seq = excluded.last_seq, calls = excluded.calls,
    bare_calls = excluded.bare_calls, events = excluded.events, signature = excluded.signature
"""
_DROP = """
DELETE FROM detection_searchblock WHERE project_id = %s AND ctid = ANY (ARRAY(
    SELECT ctid FROM detection_searchblock WHERE project_id = %s LIMIT %s))
"""


class _TextEvent(NamedTuple):
    session_id: int
    seq: int
    type: str
    tool: str
    arguments: str | None
    content: str | None
    closes: int
    """Of a result without a tool: its call, whose tool finds it, too."""


@dataclass(slots=True)
class _GrowingBlock:
    first_seq: int
    last_seq: int = 0
    calls: int = 0
    bare_calls: int = 0
    events: int = 0
    bits: int = 0
    signature: bytes = b""


@dataclass(slots=True)
class _BlockPart:
    """Consecutive events that go into one block together, with each text once: loops repeat theirs."""

    texts: dict[str, None] = field(default_factory=dict)
    characters: int = 0
    events: int = 0
    calls: int = 0
    bare_calls: int = 0
    last_seq: int = 0

    def add(self, event: _TextEvent, tool: str) -> None:
        """Add an event."""
        for text in (tool, event.arguments, event.content):
            if text and text not in self.texts:
                self.texts[text] = None
                self.characters += len(text)
        self.events += 1
        self.last_seq = event.seq
        if event.type == "call":
            self.calls += 1
            self.bare_calls += event.arguments is None


class _TouchedSession(NamedTuple):
    key: SessionKey
    evaluated_seq: int
    changed_xid: int
    names: str
    last_seq: int
    newest: _GrowingBlock | None

    @classmethod
    def of(cls, row: tuple[object, ...]) -> _TouchedSession:
        """Return a row of `_TOUCHED`."""
        project_id, session_id, evaluated_seq, xid, names, first_seq, last_seq, *block = row
        newest = None if first_seq is None else _GrowingBlock(first_seq, last_seq, *block)  # type: ignore[arg-type]
        if newest is not None:
            newest.signature = bytes(newest.signature)
        return cls(SessionKey(project_id, session_id), evaluated_seq, xid, names, last_seq, newest)  # type: ignore[arg-type]


def index_texts() -> int:
    """Index the texts of events evaluated since the last run.

    Returns
    -------
    int
        Number of sessions with new events. Only one process indexes at a time; another one returns 0 at once. Takes
        about 30 microseconds of processor time per event of 400 bytes, and one index look-up per project without any.
    """
    total, is_whole = walk(IndexingCursor, AdvisoryLock.INDEXING, _index_some, MAX_SESSIONS, _searchable)
    if is_whole:
        _drop_what_is_switched_off()
    return total


def _searchable() -> set[int]:
    return {*Project.objects.filter(is_searchable=True).values_list("pk", flat=True)}


def _index_some(project_id: int, seen: int, after: Place) -> tuple[int, Place | None]:
    """Index the next sessions of a project, in the caller's transaction.

    Returns
    -------
    tuple
        How many, and the last one that is fully indexed; None after the last of all.
    """
    wanted = {"project": project_id, "seen": seen, "xid": after[0], "id": after[1], "limit": BATCH_SESSIONS}
    with connection.cursor() as cursor:
        cursor.execute(_TOUCHED, wanted)
        rows = [_TouchedSession.of(row) for row in cursor.fetchall()]
    if not rows:
        return 0, None
    portion, last = _portion(rows, after)
    _index(project_id, portion)
    is_whole = len(rows) < BATCH_SESSIONS and last == (rows[-1].changed_xid, rows[-1].key[1])
    return len(portion), None if is_whole else last


def _portion(
    rows: Sequence[_TouchedSession], after: tuple[int, int]
) -> tuple[list[_TouchedSession], tuple[int, int]]:
    """Return the sessions to index now, each with how far, and the last one that will be fully indexed."""
    found: list[_TouchedSession] = []
    left = BATCH_EVENTS
    for row in rows:
        if left <= 0:
            break
        to = min(row.evaluated_seq, row.last_seq + left)
        left -= to - row.last_seq
        found.append(row._replace(evaluated_seq=to))
        if to < row.evaluated_seq:
            break
        after = (row.changed_xid, row.key.session_id)
    return found, after


def _index(project_id: int, sessions: Sequence[_TouchedSession]) -> None:
    rows: list[tuple[object, ...]] = []
    with connection.cursor() as cursor:
        wanted = [(one.key.session_id, one.last_seq, one.evaluated_seq) for one in sessions]
        cursor.execute(_EVENTS.format(events="detection_event"), [*_columns(wanted), project_id])
        events = [*map(_TextEvent._make, cursor)]
        unread = {one[0] for one in wanted} - {one.session_id for one in events}
        packed = packed_rows(project_id, unread) if unread else None
        if packed is not None:  # of a project that wants an index again
            cursor.execute(_EVENTS.format(events=ROWS), [*_columns(wanted), packed, project_id])
            events += map(_TextEvent._make, cursor)
        of_session = {
            session_id: [*own] for session_id, own in groupby(events, key=lambda one: one.session_id)
        }
        tools = {(one.session_id, one.seq): one.tool for one in events if one.type == "call"}
        earlier = {
            (one.session_id, one.closes)
            for one in events
            if one.closes and (one.session_id, one.closes) not in tools
        }
        if earlier:
            cursor.execute(_TOOLS, [*_columns([*earlier]), project_id])
            tools |= {(session_id, seq): tool for session_id, seq, tool in cursor}
        for one in sessions:
            for block in _changed_blocks(one, of_session.get(one.key.session_id, []), tools):
                numbers = (block.last_seq, block.calls, block.bare_calls, block.events, block.bits)
                rows.append((one.key.session_id, block.first_seq, *numbers, block.signature))
        cursor.execute(_STORE, [project_id, *_columns(rows)])


def _columns(rows: Sequence[tuple[object, ...]]) -> list[list[object]]:
    return [[*column] for column in zip(*rows, strict=True)]


def _changed_blocks(
    session: _TouchedSession, events: Sequence[_TextEvent], tools: Mapping[tuple[int, int], str]
) -> Iterable[_GrowingBlock]:
    """Return the blocks of a session that are new or have grown."""
    block, names = session.newest, folded(session.names)
    changed: dict[int, _GrowingBlock] = {}
    for part in _parts(events, tools, session.evaluated_seq):
        pieces = pieces_of("\n".join((names, *map(folded, part.texts))))
        grown = None
        if block is not None and block.events + part.events <= BLOCK_EVENTS:
            signature, fill = with_pieces(block.signature, block.bits, pieces)
            grown = signature if fill <= MAX_FILL or not part.events else None
        if block is None or grown is None:
            bits = size_for(len(pieces))
            block = _GrowingBlock((block.last_seq if block else 0) + 1, bits=bits)
            grown, _ = with_pieces(b"", bits, pieces)
        block.signature = grown
        block.last_seq = part.last_seq
        block.events += part.events
        block.calls += part.calls
        block.bare_calls += part.bare_calls
        changed[block.first_seq] = block
    return changed.values()


def _parts(
    events: Sequence[_TextEvent], tools: Mapping[tuple[int, int], str], up_to: int
) -> Iterator[_BlockPart]:
    """Yield the events in parts of the size of a block at most; the last one reaches to the last event read."""
    part = _BlockPart()
    for event in events:
        tool = event.tool or tools.get((event.session_id, event.closes), "")
        if part.events == BLOCK_EVENTS or part.characters >= PART_CHARACTERS:
            yield part
            part = _BlockPart()
        part.add(event, tool)
    part.last_seq = up_to
    yield part


def _drop_what_is_switched_off() -> None:
    """Delete the index of projects that want none, in small transactions."""
    for project_id in Project.objects.filter(is_searchable=False).values_list("pk", flat=True):
        deleted = BATCH_BLOCKS
        while deleted == BATCH_BLOCKS:
            with connection.cursor() as cursor:
                cursor.execute(_DROP, [project_id, project_id, BATCH_BLOCKS])
                deleted = cursor.rowcount


def index_from_the_beginning() -> None:
    """Have the next run look at every session, in the caller's transaction: a project wants an index again.

    A run that is under way from the beginning leaves the cursor alone: it is another one each time.
    """
    IndexingCursor.objects.filter(pk=1).update(seen_xid=Least(F("seen_xid"), 0) - 1)
