"""Writes of a transaction to the events of one session: new ones, and the outcome of evaluation on stored ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from detection.models import Session, call_flags
from detection.services.events import event_records
from detection.services.events.event_records import EventRecord
from detection.sql.pipeline import Writes

STRIP_CELLS = 60
_FEW_FLAGS = 3
"""Up to this number, earlier calls are marked one by one, which takes half the planning time of a join."""

_PUT_RUN = (
    "UPDATE detection_event e SET flags = left(v.flag || translate(e.flags, %s || v.flag, %s) || %s, 12)"
    " FROM unnest(%s::int[], %s::text[]) AS v (seq, flag)"
    " WHERE e.project_id = %s AND e.session_id = %s AND e.seq = v.seq"
)
_PUT_FLAGS = (
    "UPDATE detection_event e SET flags = left(v.flag || translate(e.flags, %s || v.flag, ''), 12)"
    " FROM unnest(%s::int[], %s::text[]) AS v (seq, flag)"
    " WHERE e.project_id = %s AND e.session_id = %s AND e.seq = v.seq"
)


class EventChanges:
    """Changes of one locked session's events, and of its strip with them; written by its owner.

    Attributes
    ----------
    stored
        The new events that were written.
    has_changed_others
        Whether more than the flags of stored events was written.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._key = session, session.key
        self.stored: Sequence[EventRecord] = ()
        self.has_changed_others = False
        self._new: Sequence[EventRecord] = ()
        self._evaluated: list[EventRecord] = []
        self._result_flags: dict[int, str] = {}
        self._flags_if_reported: dict[int, str] = {}
        self._quarantined: list[tuple[EventRecord, str, str]] = []
        self._delayed: list[int] = []
        self._ran: dict[int, str] = {}

    def store(self, events: Sequence[EventRecord]) -> None:
        """Add new events to the writes, with the outcome of evaluation."""
        if not self._session.project.stores_payloads:
            # Copies: the events are folded again if this transaction has to be repeated.
            events = [event.without_payload() for event in events]
        self._new = [*self._new, *events]

    def note_evaluated(self, event: EventRecord) -> None:
        """Add the outcome of evaluation on a stored event to the writes."""
        self._evaluated.append(event)

    def quarantine(self, event: EventRecord, error: str, traceback: str) -> None:
        """Add an event whose evaluation raised to the quarantined ones, or replace its error there."""
        self._quarantined.append((event, error, traceback))

    def add_call(self, event: EventRecord) -> None:
        """Add a call to the strip."""
        strip = self._session.strip
        strip.append([event.seq, event.call_key[:6], event.flags, event.call_number])
        del strip[:-STRIP_CELLS]

    def replace_decision(self, event: EventRecord, decision: str) -> None:
        """Give a held call another decision."""
        event.decision = decision
        event.flags = call_flags.with_decision(event.flags, decision)
        for cell in self._cells(event.seq):
            cell[2] = event.flags

    def run_after_pause(self, seq: int) -> None:
        """Allow a delayed call whose pause is over, on its row and in the strip."""
        self._delayed.append(seq)
        for cell in self._cells(seq):
            cell[2] = call_flags.without_decision(cell[2])

    def run_nevertheless(self, seq: int) -> None:
        """Note that a refused call ran, on its row and in the strip."""
        self._ran[seq] = ""
        for cell in self._cells(seq):
            cell[2] = call_flags.with_run(cell[2], "")

    def replace_call(self, event: EventRecord) -> None:
        """Put the outcome of another evaluation of a stored call on its row, and on its cell of the strip."""
        self.note_evaluated(event)
        for cell in self._cells(event.seq):
            cell[1:3] = [event.call_key[:6], event.flags]

    def put_result(self, seq: int, flag: str) -> None:
        """Add the flags of a result to its call, in the strip and in the table."""
        self._result_flags[seq] = flag
        for cell in self._cells(seq):
            cell[2] = call_flags.with_result(cell[2], flag)

    def put_result_if_reported(self, seq: int, flag: str) -> None:
        """Add the flags of the result of a call that was to be blocked, if it ran all the same."""
        for cell in self._cells(seq):
            if not call_flags.ran_nevertheless(cell[2]):
                return
            cell[2] = call_flags.with_result(cell[2], flag)
        # A row has one write.
        (self._ran if seq in self._ran else self._flags_if_reported)[seq] = flag

    def _cells(self, seq: int) -> Iterator[list[Any]]:
        """Yield the cell of a call, if the strip still has it; most are near its end."""
        return itertools.islice((cell for cell in reversed(self._session.strip) if cell[0] == seq), 1)

    def add_writes(self, writes: Writes) -> None:
        """Add the writes; many new events are stored at once."""
        have_run = {*self._delayed, *self._ran}
        self._put_results_on_rows()
        event_records.add_store(writes, self._key.project_id, self._new)
        self._add_evaluated(writes)
        self._add_result_flags(writes)
        self._add_runs(writes)
        self._add_flags_if_reported(writes)
        self._add_quarantined(writes)
        if self._delayed:
            writes.add(
                "UPDATE detection_event SET decision = 'allow', flags = translate(flags, %s, '')"
                " WHERE project_id = %s AND session_id = %s AND seq = ANY(%s)",
                [call_flags.BLOCKED, *self._key, self._delayed],
            )
        for seq in have_run:
            writes.add(
                "INSERT INTO detection_allowedcall (project_id, session_id, seq) VALUES (%s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                [*self._key, seq],
            )
        self.has_changed_others |= bool(have_run or self._evaluated)
        self.stored = self._new or self.stored
        self._delayed, self._ran = [], {}
        self._new, self._evaluated, self._quarantined = (), [], []
        self._result_flags, self._flags_if_reported = {}, {}

    def _put_results_on_rows(self) -> None:
        """Add the flags to calls that are not written yet."""
        if not self._result_flags and not self._flags_if_reported and not self._ran:
            return
        by_seq = {event.seq: event for event in (*self._evaluated, *self._new)}
        for seq in self._result_flags.keys() & by_seq.keys():
            by_seq[seq].flags = call_flags.with_result(by_seq[seq].flags, self._result_flags.pop(seq))
        for seq in self._flags_if_reported.keys() & by_seq.keys():
            flag = self._flags_if_reported.pop(seq)
            if call_flags.ran_nevertheless(by_seq[seq].flags):
                by_seq[seq].flags = call_flags.with_result(by_seq[seq].flags, flag)
        for seq in self._ran.keys() & by_seq.keys():
            by_seq[seq].flags = call_flags.with_run(by_seq[seq].flags, self._ran.pop(seq))

    def _add_evaluated(self, writes: Writes) -> None:
        session, events = self._session, self._evaluated
        if not events:
            return
        stores_payloads = session.project.stores_payloads
        writes.add(
            "UPDATE detection_event e SET call_key = v.call_key, result_digest = v.result_digest, flags = v.flags,"
            " decision = v.decision, call_number = v.call_number, reply = v.reply,"
            " arguments = CASE WHEN %s THEN e.arguments END, content = CASE WHEN %s THEN e.content END,"
            " cwd = CASE WHEN %s THEN e.cwd ELSE '' END"
            " FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[])"
            " AS v (seq, call_key, result_digest, flags, decision, call_number, reply)"
            " WHERE e.project_id = %s AND e.session_id = %s AND e.seq = v.seq",
            [
                *[stores_payloads] * 3,
                [event.seq for event in events],
                [event.call_key for event in events],
                [event.result_digest for event in events],
                [event.flags for event in events],
                [event.decision for event in events],
                [event.call_number for event in events],
                [event.reply for event in events],
                *self._key,
            ],
        )

    def _add_result_flags(self, writes: Writes) -> None:
        flags = self._result_flags
        if len(flags) > _FEW_FLAGS:
            writes.add(
                _PUT_FLAGS,
                [call_flags.RESULT_FLAGS, [*flags], [*flags.values()], *self._key],
            )
            return
        for seq, flag in flags.items():
            writes.add(
                "UPDATE detection_event SET flags = left(%s || translate(flags, %s, ''), 12)"
                " WHERE project_id = %s AND session_id = %s AND seq = %s",
                [flag, call_flags.RESULT_FLAGS + flag, *self._key, seq],
                ends_in_condition=True,
            )

    def _add_runs(self, writes: Writes) -> None:
        if not self._ran:
            return
        writes.add(
            _PUT_RUN,
            [
                call_flags.NOT_RUN + call_flags.RESULT_FLAGS,
                call_flags.RAN,
                call_flags.REFUSED,
                [*self._ran],
                [*self._ran.values()],
                *self._key,
            ],
        )

    def _add_flags_if_reported(self, writes: Writes) -> None:
        if not self._flags_if_reported:
            return
        writes.add(
            f"{_PUT_FLAGS} AND e.flags <> translate(e.flags, %s, '')",
            [
                call_flags.RESULT_FLAGS,
                [*self._flags_if_reported],
                [*self._flags_if_reported.values()],
                *self._key,
                call_flags.RAN,
            ],
        )

    def _add_quarantined(self, writes: Writes) -> None:
        if not self._quarantined:
            return
        events = [event for event, _, _ in self._quarantined]
        writes.add(
            "INSERT INTO detection_quarantinedevent AS q (project_id, session_id, seq, type, tool, error, traceback)"
            " SELECT %s, %s, * FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::text[])"
            " ON CONFLICT (project_id, session_id, seq) DO UPDATE"
            " SET error = excluded.error, traceback = excluded.traceback, at = excluded.at",
            [
                *self._key,
                [event.seq for event in events],
                [event.type for event in events],
                [event.tool for event in events],
                [error for _, error, _ in self._quarantined],
                [traceback for _, _, traceback in self._quarantined],
            ],
        )
