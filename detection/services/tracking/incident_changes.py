"""Writes of a transaction to the incidents of one session: named fields, activity, costs, and a copy of the evidence.

What changes, and when, belongs to `tracker`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Final, NamedTuple

from detection import clock
from detection.engine.detectors import detector_for
from detection.engine.loop_identity import cycle_name
from detection.models import (
    AlertEvent,
    Event,
    EventType,
    ImportedLoopCalls,
    Incident,
    IncidentActivity,
    LimitNotice,
    Session,
    call_flags,
)
from detection.models.evidence import EvidenceCall, EvidenceMessage
from detection.models.sessions import MAX_COST_USD, cost_with
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.tracking import loops
from detection.sql.pipeline import Writes
from detection.stream.hints import Hint

EVIDENCE_CALLS = 24
EVIDENCE_ARGUMENTS_CHARACTERS, EVIDENCE_RESULT_CHARACTERS = 4000, 2000

_ADD_LATE_COSTS: Final = """
UPDATE detection_incident i SET cost_usd = least(%s, i.cost_usd + (
    SELECT sum(l.cost) FROM unnest(%s::int[], %s::numeric[]) AS l (seq, cost) WHERE {counts}))
WHERE i.project_id = %s AND {place} AND EXISTS (SELECT FROM unnest(%s::int[]) AS l (seq) WHERE {counts})
"""
_OF_SESSION: Final = _ADD_LATE_COSTS.format(
    place="i.session_id = %s AND NOT i.is_of_family",
    counts="i.evidence->'seqs' @> to_jsonb(l.seq)"
    " AND NOT coalesce(i.evidence->'counted_elsewhere' @> to_jsonb(l.seq), false)",
)
_OF_FAMILY: Final = _ADD_LATE_COSTS.format(
    # Ended ones of this life of the family: an earlier one may have had the same names. Those whose top was not stored
    # have numbers of no session, which an index finds.
    place="i.is_of_family AND i.session_name = %s AND i.last_seen_at >= %s"
    " AND (i.ended_at IS NULL OR i.session_id = %s OR (i.session_id IS NULL AND i.first_seq = 0))",
    counts="i.evidence->'counted' @> jsonb_build_array(jsonb_build_array(%s::text, l.seq))",
)


class FamilyTop(NamedTuple):
    """Where the incidents of a family are reported: the session at the top, which may not be stored."""

    session_name: str
    session_id: int | None
    agent: str


class IncidentChanges:
    """Changes of one locked session's incidents; written by `save`, which does nothing if there are none.

    Attributes
    ----------
    hints
        Hints for the live pages; the owner of the session sends them after the commit.
    calls_for_attention
        The alert events of the latest `save` that make an incident worth a look, by the incident's public id.
    """

    def __init__(self, session: Session) -> None:
        self.hints: set[Hint] = set()
        self.calls_for_attention: dict[str, AlertEvent] = {}
        self._session = session
        self._new: set[str] = set()
        self._touched: dict[str, Incident] = {}
        self._fields: dict[str, set[str]] = {}
        self._activity: list[IncidentActivity] = []
        self._notices: list[LimitNotice] = []
        self._evidence_seqs: dict[str, set[int]] = {}
        self._ended_at_seq: dict[str, int] = {}
        self._unpriced_calls: dict[str, set[int]] = {}
        """Counted calls by incident whose costs `save` adds."""
        self._late_costs: dict[int, float] = {}
        self._family_top: FamilyTop | None = None

    @property
    def has_any(self) -> bool:
        """Whether `save` has anything to write."""
        return bool(self._touched or self._notices)

    @property
    def touched(self) -> Collection[Incident]:
        """The incidents that `save` will write."""
        return self._touched.values()

    @property
    def _is_past(self) -> bool:
        """Whether the run was over when it was recorded: nobody is to be alerted."""
        return self._session.is_imported or clock.is_past()

    def is_new(self, incident: Incident) -> bool:
        """Return whether the incident is not stored yet."""
        return incident.public_id in self._new

    def add(self, incident: Incident) -> None:
        """Store a new incident."""
        self._new.add(incident.public_id)
        self.touch(incident, ())

    def add_notice(self, notice: LimitNotice) -> None:
        """Store a notice of a limit, unless the limit has one."""
        self._notices.append(notice)

    def touch(self, incident: Incident, fields: Iterable[str]) -> None:
        """Write these fields; those that people change (status, label) are not overwritten."""
        self._touched[incident.public_id] = incident
        self._fields.setdefault(incident.public_id, set()).update(fields)

    def note(self, incident: Incident, action: str, note: str = "") -> None:
        """Add a line to the activity, with its audit entry and alert event."""
        # Of an import, the time at which it happened in the recorded run.
        at = {"at": self._session.last_event_at} if self._is_past else {}
        self._activity.append(
            IncidentActivity(incident=incident, actor="system", action=action, note=note, **at)
        )

    def note_end(self, incident: Incident, seq: int) -> None:
        """Note the last event of a loop that has ended: later results do not belong to its evidence."""
        self._ended_at_seq[incident.public_id] = seq

    def add_evidence(self, incident: Incident, seqs: Iterable[int]) -> None:
        """Copy the calls or messages with these numbers into the evidence."""
        self._evidence_seqs.setdefault(incident.public_id, set()).update(seqs)

    def is_evidence(self, incident: Incident, seq: int) -> bool:
        """Return whether a call is in the evidence, or will be."""
        is_copied = any(call["seq"] == seq for call in incident.evidence.get("calls", ()))
        return is_copied or seq in self._evidence_seqs.get(incident.public_id, ())

    def add_costs(self, incident: Incident, seqs: Iterable[int]) -> None:
        """Add the costs of these calls."""
        self._unpriced_calls.setdefault(incident.public_id, set()).update(seqs)

    def unpriced_calls(self, public_id: str) -> frozenset[int]:
        """Return the counted calls of an incident whose costs are not added yet."""
        return frozenset(self._unpriced_calls.get(public_id, ()))

    def is_unpriced(self, seq: int) -> bool:
        """Return whether `save` adds the costs of a call, with the usage that is evaluated by then."""
        return any(seq in seqs for seqs in self._unpriced_calls.values())

    def add_late_cost(self, seq: int, cost_usd: float, family_top: FamilyTop | None) -> None:
        """Add more of the cost of a call to the incident that counts it; most calls are in none."""
        self._late_costs[seq] = self._late_costs.get(seq, 0.0) + cost_usd
        self._family_top = family_top

    def add_writes(self, writes: Writes) -> None:
        """Add the writes of late costs. They look for the incident, so that healthy sessions wait for no query."""
        if not self._late_costs:
            return
        session, top = self._session, self._family_top
        seqs, costs = [*self._late_costs], [*self._late_costs.values()]
        added = [MAX_COST_USD, seqs, costs]
        writes.add(_OF_SESSION, [*added, session.project_id, session.pk, seqs], ends_in_condition=True)
        if top is not None:
            name = session.external_id
            place = (session.project_id, top.session_name, session.started_at, top.session_id)
            writes.add(_OF_FAMILY, [*added, name, *place, seqs, name], ends_in_condition=True)
        self._late_costs.clear()

    def save(self, up_to_seq: int) -> None:
        """Write what changed, in the caller's transaction; the events must be stored already.

        Parameters
        ----------
        up_to_seq
            The event that was evaluated last.
        """
        self.calls_for_attention.clear()
        if self._notices:
            self._save_notices()
        if not self._touched:
            return
        self._gather_evidence()
        self._add_costs(up_to_seq)
        new = [incident for incident in self._touched.values() if self.is_new(incident)]
        if new:
            loops.assign(new)
        # In the order in which they changed: a loop's incident has ended before its next one opens.
        for incident in self._touched.values():
            if self.is_new(incident):
                incident.save(force_insert=True)
            else:
                incident.save(update_fields=self._fields[incident.public_id])
        if self._session.is_imported:
            self._keep_counted_calls()
        IncidentActivity.objects.bulk_create(self._activity)
        audit.record_incidents(self._activity)
        if not self._is_past:
            self.calls_for_attention = {
                event.incident.public_id: event
                for event in outbox.record_activity(self._activity)
                if event.incident is not None and event.type in outbox.CALLS_FOR_ATTENTION
            }
        for pending in (
            self._new, self._touched, self._fields, self._activity, self._evidence_seqs, self._ended_at_seq,
            self._unpriced_calls,
        ):  # fmt: skip
            pending.clear()

    def _keep_counted_calls(self) -> None:
        """Store which calls the costs are of: a later price changes those of imported ones."""
        ImportedLoopCalls.objects.bulk_create(
            ImportedLoopCalls(session=self._session, incident=self._touched[name], seqs=sorted(seqs))
            for name, seqs in self._unpriced_calls.items()
            if seqs
        )

    def _save_notices(self) -> None:
        """Store new notices and their alert events. A limit has one notice, even if the budget is counted again."""
        known = set(LimitNotice.objects.filter(session=self._session).values_list("kind", "unit", "limit"))
        for notice in self._notices:
            limit = (notice.kind, notice.unit, notice.limit)
            if limit not in known:
                known.add(limit)
                notice.save(force_insert=True)
                if not self._is_past:
                    outbox.record_limit_notice(self._session, notice)
                self.hints.add(Hint("session", self._session.external_id, "near_limit"))
        self._notices.clear()

    def _add_costs(self, up_to_seq: int) -> None:
        """Add the cost of the counted calls, and of usage that was reported after them. Two queries of two columns."""
        wanted = set().union(*self._unpriced_calls.values())
        if not wanted:
            return
        for seq in wanted:
            self._late_costs.pop(seq, None)
        rows = Event.objects.filter(session=self._session, seq__in=wanted)
        cost_of = {seq: float(cost) for seq, cost in rows.values_list("seq", "cost_usd")}
        later = Event.objects.filter(session=self._session, type=EventType.USAGE, closes__in=wanted)
        # Usage that is not evaluated yet is added when it is.
        for seq, cost in later.filter(seq__gt=min(wanted), seq__lte=up_to_seq).values_list(
            "closes", "cost_usd"
        ):
            cost_of[seq] = cost_of.get(seq, 0.0) + float(cost)
        for name, seqs in self._unpriced_calls.items():
            incident = self._touched[name]
            incident.cost_usd = cost_with(incident.cost_usd, sum(cost_of.get(seq, 0) for seq in seqs))

    def _gather_evidence(self) -> None:
        """Copy the calls of each loop, with their results, into the incident, because retention deletes the calls.

        Results that come after the loop has ended do not belong to the evidence.
        """
        wanted = {name: sorted(seqs)[-EVIDENCE_CALLS:] for name, seqs in self._evidence_seqs.items()}
        seqs = {seq for some in wanted.values() for seq in some}
        seqs |= {self._touched[name].first_seq for name in self._new}
        if not seqs:
            return
        rows = Event.objects.filter(
            session=self._session,
            seq__in=seqs,
            type__in=(EventType.CALL, EventType.MESSAGE, EventType.COMPACTION),
        )
        found = {row.seq: row for row in rows}
        calls = {seq: row for seq, row in found.items() if row.type == EventType.CALL}
        results = {
            row.closes: row
            for row in Event.objects.filter(
                session=self._session,
                type=EventType.RESULT,
                call_id__in={call.call_id for call in calls.values()},
                closes__in=[*calls],
            )
        }
        for name, own in wanted.items():
            incident = self._touched[name]
            if name in self._new and incident.first_seq in calls:
                incident.first_call_number = calls[incident.first_seq].call_number
            if detector_for(incident.kind).judges_texts:
                incident.evidence["messages"] = [_message_of(found[seq]) for seq in own if seq in found]
                # It belongs to no call; lists and maps show it at the one before it.
                incident.first_call_number = incident.last_call_number
            copies = [
                _evidence_of(calls[seq], results.get(seq), self._ended_at_seq.get(name))
                for seq in own
                if seq in calls
            ]
            if incident.is_of_family:
                copies = [copy | {"session": self._session.external_id} for copy in copies]
            known = {
                (call.get("session"), call["seq"]): call
                for call in (*incident.evidence.get("calls", ()), *copies)
            }
            # Numbers of one session say nothing about the order in a family.
            order = "at" if incident.is_of_family else "seq"
            incident.evidence["calls"] = sorted(known.values(), key=itemgetter(order))[-EVIDENCE_CALLS:]
            if detector_for(incident.kind).spans_tools:
                lap = incident.evidence["calls"][-incident.evidence.get("period", 1) :]
                incident.tool = cycle_name(call["tool"] for call in lap)


def _message_of(event: Event) -> EvidenceMessage:
    """Return a message or compaction of the evidence, cut to what a page needs."""
    return {
        "seq": event.seq,
        "type": event.type,
        "text": (event.content or "")[:EVIDENCE_RESULT_CHARACTERS],
        "at": event.received_at.isoformat(),
    }


def _evidence_of(call: Event, result: Event | None, until_seq: int | None = None) -> EvidenceCall:
    """Return one call of the evidence, with its result if it came up to `until_seq`, cut to what a page needs."""
    flags = call.flags
    if result is not None and until_seq is not None and result.seq > until_seq:
        has_run = not call_flags.has_not_run(flags)
        result, flags = None, call_flags.of_call("pending", call.decision, has_run=has_run)
    found: EvidenceCall = {
        "seq": call.seq,
        "number": call.call_number,
        "tool": call.tool,
        "arguments": (call.arguments or "")[:EVIDENCE_ARGUMENTS_CHARACTERS],
        "call_key": call.call_key,
        "decision": call.decision,
        "flags": flags,
        "at": call.received_at.isoformat(),
        "cost_usd": float(call.cost_usd),
    }
    if len(call.arguments or "") > EVIDENCE_ARGUMENTS_CHARACTERS:
        # What tells them from others that begin alike; a row of an older version has none.
        found["arguments_digest"] = call.arguments_digest or f"call {call.seq}"
    verdict = call.verdict
    if verdict is not None and verdict.finding is not None and call.decision != "allow":
        found["decided_by"] = verdict.finding["kind"]
        if verdict.rung:
            found["rung"] = verdict.rung
    if result is not None:
        found["result"] = (result.content or "")[:EVIDENCE_RESULT_CHARACTERS]
        found["result_length"] = result.content_length
        found["is_error"] = result.is_error
        if result.content_length > EVIDENCE_RESULT_CHARACTERS or result.tail_digest:
            found["result_digest"] = _digest_of(result)
    return found


def _digest_of(result: Event) -> str:
    """Return what tells a long result from others that begin alike; one whose end nobody knows is like no other."""
    text = result.content or ""
    if result.content_length > len(text) and not result.tail_digest:
        return f"result {result.seq}"
    whole = f"{result.tail_digest}\x00{text}".encode("utf-8", "replace")
    return hashlib.blake2b(whole, digest_size=12).hexdigest()
