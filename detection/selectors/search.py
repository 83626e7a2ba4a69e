"""Searches the contents of calls, results and messages, and the names of sessions.

The signatures of `SearchBlock` say where the words can be; only there, texts are read and compared. So nothing is found
that is not stored any more. A search goes from the newest sessions to older ones until it has enough hits or its time
is over, and says how far it got.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Final, NamedTuple

import orjson
import psycopg
from django.db import OperationalError, connection, transaction

from detection.filtering.language import FilterError
from detection.filtering.signatures import MAX_CHARACTERS, folded, pieces_of, terms_of
from detection.models import Project
from detection.selectors.filters import TEXT_FIELD, ListQuery
from detection.selectors.packed_events import ROWS, packed_rows
from detection.selectors.pages import BadCursor
from detection.selectors.row_fields import Shown

SECONDS: Final = 0.8
"""How long a search takes at most, by default. With all the rest, a page has its first hits within a second."""
MAX_SECONDS: Final = 10.0
LIST_SECONDS: Final = 0.2
"""How long contents are searched for a list, which must be there within 300 ms; the page of the search continues."""
LISTED_SESSIONS: Final = 500
_KEPT_SECONDS: Final = 5
_FIRST_BLOCKS, _MOST_BLOCKS = 500, 8_000
"""Blocks whose signatures one statement compares: few at first, because new sessions are usually looked for."""
_READ_BLOCKS: Final = 8
"""Blocks whose texts are read at once."""
_AROUND: Final = 100
"""Characters of an excerpt on both sides of the first word."""
_MAX_MARKS: Final = 20
_MAX_ID: Final = 2**63 - 1
_FOREIGN: Final = "`cursor` must be a `next_cursor` of a search for the same words."
_MAX_PIECES: Final = 24
"""Of a word; more of them exclude hardly anything else."""

_COMPARE = """
WITH part AS MATERIALIZED (
    SELECT session_id, first_seq, last_seq, calls, bare_calls, bits, signature FROM detection_searchblock
    WHERE project_id = %s AND (session_id, first_seq) {compared} (%s, %s)
    ORDER BY session_id DESC, first_seq DESC LIMIT %s
)
SELECT session_id, first_seq, last_seq, calls, bare_calls, {condition} FROM part
"""
_NAMES = """
SELECT id, packed_at IS NOT NULL, external_id, agent, backend, model FROM detection_session
WHERE project_id = %s AND id = ANY (%s)
"""
TEXT_COLUMNS = ("seq", "type", "tool", "arguments", "content", "closes", "call_number", "received_at")
_TEXTS = """
SELECT e.session_id, d.first_seq, e.seq, e.type, coalesce(nullif(e.tool, ''), c.tool, ''), e.arguments, e.content,
    coalesce(c.seq, e.seq), coalesce(c.call_number, e.call_number), e.received_at
FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS d (session_id, first_seq, last_seq)
JOIN {events} e ON e.project_id = %s AND e.session_id = d.session_id
    AND e.seq BETWEEN d.first_seq AND d.last_seq
LEFT JOIN {events} c ON c.project_id = e.project_id AND c.session_id = e.session_id AND c.seq = e.closes
    AND e.type = 'result'
WHERE e.type = ANY ('{{call,result,message}}'::text[]) ORDER BY e.session_id DESC, e.seq DESC
"""
_WAITING = """
SELECT count(*) FROM (
    SELECT 1 FROM detection_session s LEFT JOIN LATERAL (
        SELECT last_seq FROM detection_searchblock b WHERE b.project_id = %s AND b.session_id = s.id
        ORDER BY b.first_seq DESC LIMIT 1
    ) b ON true
    WHERE s.project_id = %s AND s.changed_xid >= coalesce((SELECT seen_xid FROM detection_indexingcursor), 0)
        AND s.last_seq > coalesce(b.last_seq, 0) LIMIT 1000
) AS waiting
"""


@dataclass(frozen=True, slots=True)
class FoundWord:
    """A found word in an excerpt."""

    start: Annotated[int, Shown("SearchPlace of its first character, from 0.")]
    end: Annotated[int, Shown("SearchPlace after its last character.")]


@dataclass(frozen=True, slots=True)
class Hit:
    """A call, a result or a message with all words; of equal ones in a stretch of a session, the newest."""

    # fmt: off
    session: Annotated[str, Shown("Your name for the session.")]
    agent: Annotated[str, Shown("The agent of the session.", is_optional=True)]
    kind: Annotated[str, Shown(
        "What contains the words: of `session`, its names do.", choices=("call", "result", "message", "session"),
    )]
    seq: Annotated[int, Shown("SearchPlace of the event in the session.", is_optional=True)]
    call: Annotated[int, Shown("Number of the call in the session, from 1.", is_optional=True)]
    tool: Annotated[str, Shown("Tool of the call.", is_optional=True)]
    at: Annotated[datetime | None, Shown("When the event was received.")]
    times: Annotated[int, Shown("How many equal ones there are in this stretch of the session.")]
    excerpt: Annotated[str, Shown("The text around the first word.")]
    marks: Annotated[tuple[FoundWord, ...], Shown("Where the words are in the excerpt.")]
    # fmt: on


class SearchPlace(NamedTuple):
    """Where a search continues: in which block, behind how many of its hits; and how much it has searched before."""

    session_id: int = _MAX_ID
    first_seq: int = 0
    skipped: int = 0
    calls: int = 0
    bare_calls: int = 0


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Some hits, newest sessions first and the newest call of each first, and how far the search got."""

    # fmt: off
    items: Annotated[tuple[Hit, ...], Shown("The hits.")]
    next_cursor: Annotated[str | None, Shown("Continues the search. Null if it is complete.")]
    searched_calls: Annotated[int, Shown("Number of calls that were searched since the first page.")]
    without_contents: Annotated[int, Shown(
        "How many of these are stored without arguments and results, so only their tools were searched.",
    )]
    searched_since: Annotated[date | None, Shown(
        "The day on which the oldest session that was searched was first stored. Null if none was.",
    )]
    waiting_sessions: Annotated[int | None, Shown(
        "Sessions with events that cannot be found yet, up to 1,000. The index follows within seconds. Null if there "
        "was no time to count them.",
    )]
    # fmt: on


@dataclass(frozen=True, slots=True)
class SessionsFound:
    """The sessions that a filter by contents selects, and whether all were searched."""

    ids: tuple[int, ...]
    is_complete: bool


class _ComparedBlock(NamedTuple):
    session_id: int
    first_seq: int
    last_seq: int
    calls: int
    bare_calls: int
    is_possible: bool


class _NamesOfSession(NamedTuple):
    session: str
    agent: str
    backend: str
    model: str


class _StoredText(NamedTuple):
    session_id: int
    first_seq: int
    seq: int
    type: str
    tool: str
    arguments: str | None
    content: str | None
    call_seq: int
    call_number: int
    received_at: datetime


def search(
    project_id: int,
    query: str,
    cursor: str = "",
    limit: int = 20,
    seconds: float = SECONDS,
    *,
    is_by_session: bool = False,
) -> SearchPage:
    """Search the contents of a project.

    Parameters
    ----------
    query
        Words, and phrases in quotes. All must occur in one call, result or message, or in the names of its session:
        anywhere, also within words, ignoring upper and lower case.
    cursor
        `next_cursor` of the page before, with the same query.
    seconds
        How long to search, up to `MAX_SECONDS`. Then the page has what was found so far.
    is_by_session
        Only the newest hit of each session.

    Raises
    ------
    FilterError
        Without a word, or if the project keeps no index.
    BadCursor
    """
    terms = _checked(project_id, query)
    scan = _Scan(project_id, terms, _place(cursor, terms), time.monotonic() + min(seconds, MAX_SECONDS))
    hits: list[Hit] = []
    done: set[int] = set()
    waiting = scan.waiting_sessions()
    for block, names, texts in scan.candidates(done):
        found = [*_hits(block, names, texts, terms)][scan.skipped_in(block) :]
        if is_by_session and found:
            found = found[:1]
            done.add(block.session_id)
        taken = found[: limit - len(hits)]
        hits += taken
        if len(taken) < len(found):
            scan.stop_within(block, len(taken))
            break
        scan.finish(block)
        if len(hits) == limit:
            break
    if scan.place.session_id in done:
        scan.pass_over_session()
    day = scan.place.session_id >> 32 if scan.place.session_id != _MAX_ID else None
    return SearchPage(
        tuple(hits),
        None if scan.is_complete else _cursor(scan.place, terms),
        scan.place.calls,
        scan.place.bare_calls,
        None if day is None else date(1970, 1, 1) + timedelta(days=day),
        waiting,
    )


def sessions_with(project_id: int, query: str, limit: int, seconds: float) -> SessionsFound:
    """Return the newest sessions with a hit, up to `limit`, as far as they are found within the time.

    Raises
    ------
    FilterError
    """
    terms = _checked(project_id, query)
    scan = _Scan(project_id, terms, SearchPlace(), time.monotonic() + seconds)
    found: dict[int, None] = {}
    for block, names, texts in scan.candidates(found):
        if any(True for _ in _hits(block, names, texts, terms)):
            found[block.session_id] = None
        scan.finish(block)
        if len(found) == limit:
            break
    return SessionsFound(tuple(found), scan.is_complete)


def with_contents(project_id: int, query: ListQuery) -> ListQuery:
    """Return the query of a list with the sessions in which its words are, as far as they are found in a moment.

    Raises
    ------
    FilterError
        For the field `text` in a project that keeps no index, or without a word; words are then searched for in the
        names of the list only. For `-text:` if not all sessions with the word were found.
    """
    found: dict[str, tuple[int, ...]] = {}
    is_partial = False
    for word in query.content_words:
        try:
            # Pages that are open ask again with every change.
            sessions = _recent(project_id, word, int(time.monotonic() / _KEPT_SECONDS))
        except FilterError:
            if any(term.field == TEXT_FIELD.name for term in query.terms):
                raise
            return query
        found[word] = sessions.ids
        is_partial |= not sessions.is_complete
    if is_partial and any(term.field == TEXT_FIELD.name and term.is_negated for term in query.terms):
        # An action on all rows would reach those that it was meant to spare.
        raise FilterError(
            f"`-{TEXT_FIELD.name}` cannot be applied: more sessions contain its words than a list finds in its time."
        )
    return replace(query, found=found, is_partial=is_partial) if found else query


@lru_cache(maxsize=64)
def _recent(project_id: int, query: str, moment: int) -> SessionsFound:
    return sessions_with(project_id, f'"{query}"' if " " in query else query, LISTED_SESSIONS, LIST_SECONDS)


def _checked(project_id: int, query: str) -> tuple[str, ...]:
    terms = terms_of(query)
    if len(query) > MAX_CHARACTERS or "\x00" in query:
        raise FilterError(f"A search can have at most {MAX_CHARACTERS:,} characters, and no NUL.")
    if not terms:
        raise FilterError("Enter a word to search for.")
    if not Project.objects.filter(pk=project_id, is_searchable=True).exists():
        raise FilterError("This project keeps no index of contents. An admin can enable it in its settings.")
    return terms


class _TimeIsOver(Exception):
    """The statement was cancelled, or no time is left for one."""


class _Scan:
    """Goes through the blocks of a project, newest sessions first."""

    def __init__(self, project_id: int, terms: tuple[str, ...], place: SearchPlace, until: float) -> None:
        self._project_id, self._until = project_id, until
        self._condition, self._pieces = _condition(terms)
        self._start = self.place = place
        self.is_complete = False

    def candidates(
        self, done: Container[int] = ()
    ) -> Iterator[tuple[_ComparedBlock, _NamesOfSession, list[_StoredText]]]:
        """Yield the blocks that may contain the words, with their texts, until the end or the deadline.

        Parameters
        ----------
        done
            Sessions to pass over; looked at before each block.
        """
        with suppress(_TimeIsOver):
            number = _FIRST_BLOCKS
            while True:
                blocks = self._compare(number)
                for part in _parts(blocks):
                    yield from self._read(part, done)
                if len(blocks) < number:
                    self.is_complete = True
                    return
                number = min(number * 2, _MOST_BLOCKS)

    def waiting_sessions(self) -> int | None:
        """Return how many sessions have events that are not indexed; None without the time to count them."""
        with suppress(_TimeIsOver):
            return int(self._rows(_WAITING, [self._project_id] * 2)[0][0])
        return None

    def skipped_in(self, block: _ComparedBlock) -> int:
        """Return how many hits of a block the page before had."""
        return self._start.skipped if block[:2] == self._start[:2] else 0

    def finish(self, block: _ComparedBlock) -> None:
        """Note that a block was searched."""
        calls, bare_calls = self.place.calls + block.calls, self.place.bare_calls + block.bare_calls
        self.place = SearchPlace(block.session_id, block.first_seq, 0, calls, bare_calls)

    def pass_over_session(self) -> None:
        """Have the next page go on with the next session."""
        self.place = self.place._replace(first_seq=0, skipped=0)

    def stop_within(self, block: _ComparedBlock, taken: int) -> None:
        """Note that only some hits of a block fit in the page."""
        skipped = self.skipped_in(block) + taken
        if skipped:
            self.place = self.place._replace(
                session_id=block.session_id, first_seq=block.first_seq, skipped=skipped
            )

    def _compare(self, number: int) -> list[_ComparedBlock]:
        place = self.place
        statement = _COMPARE.format(compared="<=" if place.skipped else "<", condition=self._condition)
        given = [self._project_id, place.session_id, place.first_seq, number, *self._pieces]
        return [*map(_ComparedBlock._make, self._rows(statement, given))]

    def _read(
        self, part: list[_ComparedBlock], done: Container[int]
    ) -> Iterator[tuple[_ComparedBlock, _NamesOfSession, list[_StoredText]]]:
        possible = [one for one in part if one.is_possible and one.session_id not in done]
        names: dict[int, _NamesOfSession] = {}
        texts: dict[tuple[int, int], list[_StoredText]] = {}
        if possible:
            ids = [*{one.session_id for one in possible}]
            rows = self._rows(_NAMES, [self._project_id, ids])
            names = {row[0]: _NamesOfSession(*row[2:]) for row in rows}
            places = [[*column] for column in zip(*(one[:3] for one in possible), strict=True)]
            found = self._rows(_TEXTS.format(events="detection_event"), [*places, self._project_id])
            packed = packed_rows(self._project_id, [row[0] for row in rows if row[1]], TEXT_COLUMNS)
            if packed is not None:
                found += self._rows(_TEXTS.format(events=ROWS), [*places, packed, self._project_id, packed])
            for text in map(_StoredText._make, found):
                texts.setdefault(text[:2], []).append(text)
        for one in part:
            # A session that is being erased has a block for a moment longer than a row that is found.
            if one.is_possible and one.session_id in names and one.session_id not in done:
                yield one, names[one.session_id], texts.get(one[:2], [])
            else:
                self.finish(one)

    def _rows(self, statement: str, given: list[Any]) -> list[tuple[Any, ...]]:
        left = int(1000 * (self._until - time.monotonic()))
        if left <= 0:
            raise _TimeIsOver
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(left)])
                cursor.execute(statement, given)
                rows: list[tuple[Any, ...]] = cursor.fetchall()
                # For a transaction around this one.
                cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
        except OperationalError as error:
            if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise _TimeIsOver from error
            raise
        return rows


def _parts(blocks: Sequence[_ComparedBlock]) -> Iterator[list[_ComparedBlock]]:
    """Yield the blocks in parts with a few that may contain the words."""
    part: list[_ComparedBlock] = []
    possible = 0
    for block in blocks:
        part.append(block)
        possible += block.is_possible
        if possible == _READ_BLOCKS:
            yield part
            part, possible = [], 0
    if part:
        yield part


def _condition(terms: Iterable[str]) -> tuple[str, list[object]]:
    """Return the condition that a signature may contain all words, and its parameters."""
    parts, given = [], list[object]()
    for term in terms:
        ways = []
        for way in _ways(term):
            pieces = sorted(pieces_of(way))[:_MAX_PIECES]
            ways.append(
                " AND ".join(["get_bit(signature, (%s::bigint %% bits)::int) = 1"] * len(pieces)) or "TRUE"
            )
            given += pieces
        parts.append(f"({' OR '.join(ways)})")
    return " AND ".join(parts), given


def _ways(term: str) -> tuple[str, ...]:
    """Return how a word is written in a text, and within a string of JSON."""
    escaped = orjson.dumps(term).decode()[1:-1]
    return (term,) if escaped == term else (term, escaped)


def _hits(
    block: _ComparedBlock, names: _NamesOfSession, texts: Iterable[_StoredText], terms: Sequence[str]
) -> Iterator[Hit]:
    """Yield the hits in a block, equal ones as one; the session itself, if its names have all words, last."""
    named = folded("\n".join(names))
    ways = [_ways(term) for term in terms]
    found: dict[tuple[str, ...], list[_StoredText]] = {}
    for text in texts:
        words = tuple(filter(None, (text.tool, text.arguments, text.content)))
        whole = folded("\n".join(words))
        own = [any(way in whole for way in of_term) for of_term in ways]
        if any(own) and all(has or term in named for has, term in zip(own, terms, strict=True)):
            found.setdefault((text.type, *words), []).append(text)
    for equal in found.values():
        yield _hit_of(names, equal[0], len(equal), ways)
    if block.first_seq == 1 and all(term in named for term in terms):
        marks = _marks(names.session, ways)
        yield Hit(names.session, names.agent, "session", 0, 0, "", None, 1, names.session, marks)


def _hit_of(names: _NamesOfSession, text: _StoredText, times: int, ways: Sequence[tuple[str, ...]]) -> Hit:
    parts = [part for part in (text.arguments, text.content) if part]
    whole = next((part for part in parts if _marks(part, ways)), next(iter(parts), ""))
    first = min((mark.start for mark in _marks(whole, ways)), default=0)
    start, end = max(0, first - _AROUND), first + 2 * _AROUND
    excerpt = whole[start:end]
    return Hit(
        names.session, names.agent, text.type, text.call_seq, text.call_number, text.tool, text.received_at, times,
        excerpt, _marks(excerpt, ways),
    )  # fmt: skip


def _marks(text: str, ways: Sequence[tuple[str, ...]]) -> tuple[FoundWord, ...]:
    """Return where words are in a text, in order and apart."""
    # Letters whose lower case is longer would move what follows; they keep their case here.
    low = "".join(one if len(small := one.lower()) != 1 else small for one in text)
    found = sorted(place for of_term in ways for way in of_term for place in _places(low, way))
    marks: list[FoundWord] = []
    for start, end in found:
        if not marks or start >= marks[-1].end:
            marks.append(FoundWord(start, end))
    return tuple(marks[:_MAX_MARKS])


def _places(text: str, word: str) -> Iterator[tuple[int, int]]:
    end = 0
    for _ in range(_MAX_MARKS):
        start = text.find(word, end)
        if start < 0:
            return
        end = start + len(word)
        yield start, end


def _digest(terms: tuple[str, ...]) -> str:
    return blake2b("\n".join(terms).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _cursor(place: SearchPlace, terms: tuple[str, ...]) -> str:
    plain = "|".join(("search", _digest(terms), *map(str, place)))
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _place(cursor: str, terms: tuple[str, ...]) -> SearchPlace:
    if not cursor:
        return SearchPlace()
    try:
        plain = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
        name, digest, *numbers = plain.split("|")
        place = SearchPlace(*map(int, numbers))
    except (ValueError, TypeError, binascii.Error) as error:
        raise BadCursor(_FOREIGN) from error
    if name != "search" or digest != _digest(terms) or len(numbers) != len(place) or not _is_possible(place):
        raise BadCursor(_FOREIGN)
    return place


def _is_possible(place: SearchPlace) -> bool:
    return all(0 <= number <= _MAX_ID for number in place) and max(place.first_seq, place.skipped) < 2**31
