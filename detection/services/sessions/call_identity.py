"""Recognises events that were sent before, and finds the call that a result belongs to.

Decided once, when an event gets its number, from the stored events and those before it in the request: the outcome does
not depend on how a history is split into requests, nor on how far it is evaluated. `detection.engine.open_calls` does
the same for users of the library, who have no stored events.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from detection.engine.dispatching import outer
from detection.engine.open_calls import is_assigned
from detection.models import EventType
from detection.models.stored_verdict import StoredVerdict
from detection.services.events.event_records import EventRecord
from detection.services.events.recent_calls import LATEST_EVENTS, RecentCalls
from detection.sql.pipeline import Rows, Statement, send

SAME_ID_EVENTS = 32
"""Number of latest events with one call id that are compared. A model server may use one id ten thousand times."""
_OF_CALLS = (EventType.CALL, EventType.RESULT, EventType.HEARTBEAT)
"""Events of other types may name a call, and repeat nothing of it."""
_FEW_IDS = 8
"""Up to here one subquery per id is faster than a join: each opens one partition only."""

_COLUMNS = (
    "session_id",
    "seq",
    "type",
    "call_id",
    "tool",
    "arguments_digest",
    "round",
    "run",
    "closes",
    "decision",
)
_EVENTS = (
    f"SELECT {', '.join(_COLUMNS)}, verdict IS NOT NULL FROM detection_event"  # noqa: S608 - constants
    " WHERE type IN ('call', 'result')"
)
_WITH_ID = (
    f"({_EVENTS} AND project_id = %s AND session_id = %s AND call_id = %s"
    f" ORDER BY seq DESC LIMIT {SAME_ID_EVENTS})"
)
_WITH_IDS = (
    "SELECT e.* FROM unnest(%s::bigint[], %s::text[]) AS w (its_session, its_id) CROSS JOIN LATERAL"  # noqa: S608 - constants
    f" ({_EVENTS}"
    " AND project_id = %s AND session_id = w.its_session AND call_id = w.its_id"
    f" ORDER BY seq DESC LIMIT {SAME_ID_EVENTS}) e"
)
_LATEST = f"({_EVENTS} AND project_id = %s AND session_id = %s ORDER BY seq DESC LIMIT {LATEST_EVENTS})"

ROUND_EVENTS = 1_000
"""Number of latest events among which the call of a round's usage is searched."""
_FIRST_OF_ROUNDS = (
    "SELECT DISTINCT ON (e.session_id, e.round) e.*"  # noqa: S608 - constants
    " FROM unnest(%s::bigint[], %s::text[]) AS w (its_session, its_round) CROSS JOIN LATERAL"
    f" ({_EVENTS} AND type = 'call' AND project_id = %s AND session_id = w.its_session AND round = w.its_round"
    f" AND seq > (SELECT max(l.seq) - {ROUND_EVENTS} FROM detection_event l"
    " WHERE l.project_id = %s AND l.session_id = w.its_session)"
    " ORDER BY seq LIMIT 1) e"
)

Place = tuple[int, str]


class CallIdentity:
    """The calls and results that the events of one request may refer to, of sessions locked by this transaction.

    Parameters
    ----------
    project_id
        The project of the sessions.
    events
        All events of the request with the row ids of their sessions, omitting sessions without any event.
    """

    def __init__(self, project_id: int, events: Iterable[tuple[int, EventRecord]]) -> None:
        self._by_id: defaultdict[Place, deque[EventRecord]] = defaultdict(_same_id)
        self._latest: defaultdict[int, deque[EventRecord]] = defaultdict(_latest)
        self._rounds: dict[Place, EventRecord] = {}
        rounds: set[Place] = set()
        places: set[Place] = set()
        sessions: set[int] = set()
        for session_id, event in events:
            if event.call_id:
                places.add((session_id, event.call_id))
            elif event.type == EventType.RESULT:
                sessions.add(session_id)
            elif event.type == EventType.USAGE and event.round:
                rounds.add((session_id, event.round))
        self._places, self._sessions, self._has_rounds = places, sessions, bool(rounds)
        self._reads: list[tuple[Callable[[], Statement], Callable[[EventRecord], None]]] = []
        if places:
            self._reads.append((lambda: _with_ids(project_id, sorted(places)), self._add_to_id))
        if sessions:
            self._reads.append((lambda: _latest_events(project_id, sorted(sessions)), self._add_to_latest))
        if rounds:
            self._reads.append((lambda: _first_calls(project_id, sorted(rounds)), self._add_to_rounds))

    @property
    def reads(self) -> list[Statement]:
        """The statements that read the stored events, at most one of each kind; for `load`."""
        return [statement() for statement, _ in self._reads]

    def load(self, rows: Iterable[Rows]) -> Self:
        """Store the rows of `reads`, which were read under the lock of the sessions."""
        for (_, add), found in zip(self._reads, rows, strict=False):
            for record in _records(found):
                add(record)
        return self

    def recall(self, recent: RecentCalls) -> list[str] | None:
        """Take what is remembered of a session instead, to which all events of the request belong.

        Returns
        -------
        list of str or None
            The call ids of which the session must have no event up to `recent.after_seq`; None if not enough is
            remembered.
        """
        latest = recent.latest
        if self._has_rounds or (self._sessions and latest is None):
            return None
        for session_id, call_id in self._places:
            self._by_id[session_id, call_id].extend(recent.with_id(call_id))
        for session_id in self._sessions:
            self._latest[session_id].extend(latest or ())
        return [call_id for _, call_id in self._places] if recent.after_seq else []

    def read(self) -> Self:
        """Read the stored events in one round trip, or in none if nothing is needed."""
        return self.load(send(*self.reads)) if self._reads else self

    def _add_to_id(self, record: EventRecord) -> None:
        self._by_id[record.session_id, record.call_id].append(record)

    def _add_to_latest(self, record: EventRecord) -> None:
        self._latest[record.session_id].append(record)

    def _add_to_rounds(self, record: EventRecord) -> None:
        self._rounds[record.session_id, record.round] = record

    def repeated_by(self, session_id: int, event: EventRecord) -> EventRecord | None:
        """Return the stored event that a call or result repeats, None if it is new.

        A call id stands for a call within the round that the client named, and without one until a result comes. With
        other arguments it is another call. A result is a repetition if its call already has one, and a heartbeat is too
        late then.
        """
        if not event.call_id or event.type not in _OF_CALLS:
            return None
        known = self._by_id.get((session_id, event.call_id))
        if not known:
            return None
        if event.type == EventType.CALL:
            return _same_call(known, event)
        if _open_call(known, event) is not None:
            return None
        return next((one for one in reversed(known) if one.type == EventType.RESULT), None)

    def latest_like(self, session_id: int, event: EventRecord) -> EventRecord | None:
        """Return the latest call with the id, tool and arguments of a call, open or not."""
        known = self._by_id.get((session_id, event.call_id), ())
        return next((one for one in reversed(known) if _is_same(one, event)), None)

    def add(self, event: EventRecord) -> None:
        """Note a new event that has its number.

        A result without a call id gets that of its call, a heartbeat the tool of its call, and a usage the tool, id and
        run of the first call of its round.
        """
        if event.type == EventType.USAGE:
            first = self._rounds.get((event.session_id, event.round))
            if first is not None:
                event.closes, event.call_id, event.tool = first.seq, first.call_id, first.tool
                event.run = event.run or first.run
            return
        if event.type == EventType.HEARTBEAT:
            # Not noted: it closes nothing.
            call = _open_call(self._by_id.get((event.session_id, event.call_id), ()), event)
            if call is not None:
                event.closes, event.tool = call.seq, call.tool
            return
        if event.type == EventType.RESULT:
            known = self._by_id.get((event.session_id, event.call_id), ()) if event.call_id else None
            latest = self._latest[event.session_id]
            call = _open_call(latest, event) if known is None else _open_call(known, event)
            if call is not None:
                event.closes, event.call_id = call.seq, call.call_id
        elif event.type != EventType.CALL:
            return
        if event.type == EventType.CALL and _is_named(event.round):
            self._rounds.setdefault((event.session_id, event.round), event)
        if event.call_id:
            self._by_id[event.session_id, event.call_id].append(event)
        self._latest[event.session_id].append(event)


def _same_id() -> deque[EventRecord]:
    return deque(maxlen=SAME_ID_EVENTS)


def _latest() -> deque[EventRecord]:
    return deque(maxlen=LATEST_EVENTS)


def _same_call(known: Iterable[EventRecord], call: EventRecord) -> EventRecord | None:
    known = [*known]
    closed = {one.closes for one in known}
    for one in reversed(known):
        if _is_same(one, call):
            both_named = _is_named(one.round) and _is_named(call.round)
            if one.round == call.round if both_named else one.seq not in closed:
                return one
    return None


def _is_same(one: EventRecord, call: EventRecord) -> bool:
    return (
        one.type == EventType.CALL
        and one.tool == call.tool
        and one.arguments_digest == call.arguments_digest != ""
    )


def _is_named(round_id: str) -> bool:
    return bool(round_id) and not is_assigned(round_id)


def _open_call(known: Iterable[EventRecord], result: EventRecord) -> EventRecord | None:
    """Return the oldest open call that matches a result; of calls with one id, of the latest round.

    Blocked calls have no result of their own. One that names their id belongs to them nevertheless:
    it is the message that the model got instead.
    """
    known = [*known]
    closed = {one.closes for one in known}
    fitting = [
        one
        for one in known
        if one.type == EventType.CALL
        and one.seq not in closed
        and _fits(one, result, by_id=bool(result.call_id))
    ]
    ran = [one for one in fitting if not _was_blocked(one)]
    if not result.call_id:
        return ran[0] if ran else None
    latest = ran or fitting
    return next((one for one in latest if one.round == latest[-1].round), None)


def _fits(call: EventRecord, result: EventRecord, *, by_id: bool) -> bool:
    if by_id:
        return True
    return (
        (not result.tool or result.tool in (call.tool, outer(call.tool)))
        and (not result.arguments_digest or call.arguments_digest == result.arguments_digest)
        and (not result.run or call.run == result.run)
    )


def _was_blocked(call: EventRecord) -> bool:
    """Whether the guard answered that the call must not run; a reported call has run whatever its evaluation says."""
    return call.verdict is not None and call.decision in ("block", "stop")


def _with_ids(project_id: int, places: Sequence[Place]) -> Statement:
    if len(places) <= _FEW_IDS:
        text = " UNION ALL ".join([_WITH_ID] * len(places))
        return Statement(text, [value for place in places for value in (project_id, *place)])
    return Statement(_WITH_IDS, [*map(list, zip(*places, strict=True)), project_id])


def _latest_events(project_id: int, sessions: Sequence[int]) -> Statement:
    keys = [value for session_id in sessions for value in (project_id, session_id)]
    return Statement(" UNION ALL ".join([_LATEST] * len(sessions)), keys)


def _first_calls(project_id: int, rounds: Sequence[Place]) -> Statement:
    return Statement(_FIRST_OF_ROUNDS, [*map(list, zip(*rounds, strict=True)), project_id, project_id])


def _records(rows: Rows) -> list[EventRecord]:
    records = [
        EventRecord(**dict(zip(_COLUMNS, row, strict=False)), verdict=StoredVerdict() if row[-1] else None)
        for row in rows
    ]
    return sorted(records, key=lambda record: (record.session_id, record.seq))
