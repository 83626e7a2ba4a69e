"""The latest calls and results of a session that this process wrote last, so that its next request need not read them.

Kept with the session. Whoever uses them makes sure that nobody has written the session since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from detection.models import EventType
from detection.models.stored_verdict import StoredVerdict
from detection.services.events.event_records import EventRecord

LATEST_EVENTS: Final = 128
"""Number of latest calls and results among which the call of a result without a call id is searched."""


class RecentCalls:
    """The latest calls and results of a session, without their texts.

    Parameters
    ----------
    after_seq
        All that have a higher sequence number will be added.
    """

    def __init__(self, after_seq: int) -> None:
        self.after_seq = after_seq
        self._by_id: dict[str, list[EventRecord]] = {}
        self._records: deque[EventRecord] = deque()

    @property
    def latest(self) -> Sequence[EventRecord] | None:
        """The latest `LATEST_EVENTS`, oldest first; None if fewer are known."""
        return self._records if not self.after_seq or len(self._records) == LATEST_EVENTS else None

    def with_id(self, call_id: str) -> Sequence[EventRecord]:
        """Return those with a call id, oldest first."""
        return self._by_id.get(call_id, ())

    def add(self, events: Iterable[EventRecord]) -> None:
        """Add stored events, which follow those before; the oldest ones beyond `LATEST_EVENTS` are dropped."""
        for event in events:
            if event.type in (EventType.CALL, EventType.RESULT):
                record = EventRecord(
                    session_id=event.session_id,
                    seq=event.seq,
                    type=event.type,
                    call_id=event.call_id,
                    tool=event.tool,
                    arguments_digest=event.arguments_digest,
                    round=event.round,
                    run=event.run,
                    closes=event.closes,
                    decision=event.decision,
                    verdict=None if event.verdict is None else StoredVerdict(),
                )
                self._records.append(record)
                self._by_id.setdefault(record.call_id, []).append(record)
        while len(self._records) > LATEST_EVENTS:
            dropped = self._records.popleft()
            self.after_seq = dropped.seq
            same = self._by_id[dropped.call_id]
            del same[0]
            if not same:
                del self._by_id[dropped.call_id]
