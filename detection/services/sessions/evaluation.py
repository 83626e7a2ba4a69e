"""Makes the engine's findings true: folds a session's events, in order, under the row lock, into state, marks and incidents.

Workers (`evaluate`) and the guard route share `SessionWork`. Taking events in belongs to `ingest`, what people do with an
incident to `incidents`. Evaluating twice changes nothing: the cursor moves in the transaction that stores the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from django.db import DatabaseError, connection, transaction

from detection import jobs
from detection.engine import fold, snapshot
from detection.engine.calls import Call, End, Message, Result, Step
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.models import EventType, Session, SessionState
from detection.selectors.policies import Tiers, tiers_of
from detection.services.approvals.open_approvals import OpenApprovals
from detection.services.incidents.tracker import Loops
from detection.services.sessions import chat_commands, event_rows, locking, tracker_state
from detection.services.sessions.event_rows import EventRow
from detection.services.sessions.locking import lock_session
from detection.sql.pipeline import Writes
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

log = structlog.get_logger(__name__)

BATCH_EVENTS = 1000
"""Events folded in one transaction; a longer backlog takes several, so that no lock is held for long."""
REBUILD_EVENTS = 2000
"""How far back a state of an outdated version is rebuilt; every window is far shorter."""
STRIP_CELLS = 60
MAX_QUARANTINED = 20
_FEW_FLAGS = 3
"""Up to here calls of earlier transactions are marked one by one, which is planned in half the time of a join."""
SWEEP_AFTER = timedelta(seconds=2)
"""A doorbell brings a worker at once; a session that waits longer was not heard."""
SWEEP_SESSIONS = 200
_SWEEP_LOCK = 0x4C47_0002

RESULT_FLAGS = {"new": "^", "error": "!", "empty": "e", "pending": "?", "same": ""}
DECISION_FLAGS = {"allow": "", "warn": "w", "block": "b", "hold": "h", "stop": "s"}


class EventEvaluationError(Exception):
    """Folding this event failed; it is to be quarantined, and the session goes on without it."""

    def __init__(self, seq: int, error: Exception) -> None:
        super().__init__(f"event {seq}: {type(error).__name__}: {error}")
        self.seq = seq


def evaluate(session_id: int, *, wait: bool = True) -> int:
    """Fold what a session has received since it was looked at last.

    Parameters
    ----------
    session_id
        The row; a session that is gone or has nothing new costs one query.
    wait
        False: leave a session alone that somebody else is at.

    Returns
    -------
    int
        How many events were folded. What is left beyond one batch is put before a worker again.
    """
    quarantined: dict[int, str] = {}
    while True:
        try:
            return _evaluate_once(session_id, wait, quarantined)
        except EventEvaluationError as poison:
            quarantined[poison.seq] = str(poison)[:300]


@transaction.atomic
def _evaluate_once(session_id: int, wait: bool, quarantined: dict[int, str]) -> int:
    session = lock_session(session_id, wait=wait)
    if session is None or session.evaluated_seq >= session.last_seq:
        return 0
    before = session.evaluated_seq
    work = SessionWork(session, quarantined)
    if work.catch_up():
        jobs.evaluate_after_commit([session_id])
    work.save()
    return session.evaluated_seq - before


def sweep() -> int:
    """Evaluate the sessions whose doorbell nobody heard; the projects take turns.

    Returns
    -------
    int
        How many sessions were looked at; near zero while broker and workers do their part. Only one sweep runs at a
        time, wherever it is started; a second one returns at once.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_SWEEP_LOCK])
        if not cursor.fetchone()[0]:
            return 0
        try:
            cursor.execute(
                "SELECT id FROM (SELECT id, pending_since, row_number() OVER (PARTITION BY project_id ORDER BY pending_since) AS turn"
                " FROM detection_session WHERE evaluated_seq < last_seq AND pending_since < now() - make_interval(secs => %s)) AS waiting"
                " ORDER BY turn, pending_since LIMIT %s",
                [SWEEP_AFTER.total_seconds(), SWEEP_SESSIONS],
            )
            waiting = [row[0] for row in cursor.fetchall()]
            for session_id in waiting:
                try:
                    evaluate(session_id, wait=False)
                except DatabaseError:
                    log.exception("sweep_failed", session_id=session_id)
            return len(waiting)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_SWEEP_LOCK])


@dataclass(slots=True)
class SessionWork:
    """One session, locked, with its policy and state at hand; `save` writes what the folding changed.

    Make it and save it inside one transaction that holds the session's row lock. When folding raises `EventEvaluationError`,
    throw the work and the transaction away and begin again with that event among `quarantined`.
    """

    session: Session
    quarantined: dict[int, str] = field(default_factory=dict)
    call_ids: InitVar[list[str] | None] = None
    known: set[tuple[str, str]] = field(init=False, default_factory=set)
    tiers: Tiers = field(init=False)
    keyer: Keyer = field(init=False)
    state: State = field(init=False)
    loops: Loops = field(init=False)
    approvals: OpenApprovals = field(init=False)
    _marked: list[EventRow] = field(init=False, default_factory=list)
    _result_flags: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self, call_ids: list[str] | None) -> None:
        session, project = self.session, self.session.project
        self.tiers = tiers_of(project.pk, project.policy_version)
        self.keyer = Keyer(bytes(project.digest_secret))
        self.loops = Loops(session)
        stored, self.known = tracker_state.read_with_known(session.pk, call_ids or [])
        try:
            self.state = snapshot.load(stored) if stored else fold.new_state()
        except snapshot.SnapshotVersionError:
            self.state = self._rebuilt()
        self.approvals = OpenApprovals(session)
        self.approvals.expire_due(self.state)
        for seq, error in self.quarantined.items():
            session.quarantined = [*session.quarantined, {"seq": seq, "error": error}][-MAX_QUARANTINED:]

    def catch_up(self, limit: int = BATCH_EVENTS) -> bool:
        """Fold stored events after the cursor; tell whether some are left."""
        session = self.session
        waiting = event_rows.after(session.pk, session.evaluated_seq, limit)
        count = 0
        for event in waiting:
            self.fold(event)
            self._marked.append(event)
            session.evaluated_seq = event.seq
            count += 1
        if count < limit:
            session.evaluated_seq = session.last_seq
        return session.evaluated_seq < session.last_seq

    def policy_for(self, event: EventRow) -> Policy:
        """The settings that hold for an event, before its tool is looked at."""
        session = self.session
        return self.tiers.policy_for(
            event.backend or session.backend, event.model or session.model, session.policy_values
        )

    def fold(self, event: EventRow) -> Step | None:
        """Fold one event and put what it came to on the event, the strip and the incidents.

        Returns
        -------
        Step or None
            None for messages, ends and quarantined events.

        Raises
        ------
        EventEvaluationError
            When anything but the database failed.
        """
        if event.seq in self.quarantined:
            return None
        try:
            if event.type == EventType.CALL:
                return self._fold_call(event)
            if event.type == EventType.RESULT:
                return self._fold_result(event)
            if event.type == EventType.MESSAGE:
                self._fold_message(event)
            else:
                self._fold_end(event)
        except DatabaseError:
            raise
        except Exception as error:
            log.exception("event_quarantined", session=self.session.external_id, seq=event.seq)
            raise EventEvaluationError(event.seq, error) from error
        return None

    def _fold_call(self, event: EventRow) -> Step:
        policy = self.policy_for(event)
        step = fold.observe_call(self.state, engine_call(event), policy, self.keyer)
        event.call_key, event.decision = step.call_key or "", step.verdict.decision
        event.flags = (
            RESULT_FLAGS[step.cell.result if step.cell else "pending"] + DECISION_FLAGS[event.decision]
        )
        self._count(event)
        self.loops.observe(event.seq, event.tool, step, policy)
        self._meter(step)
        return step

    def _fold_result(self, event: EventRow) -> Step:
        policy = self.policy_for(event)
        step = fold.observe_result(self.state, engine_result(event), policy, self.keyer)
        event.result_digest = step.result_digest or ""
        if step.cell is not None:
            flag = RESULT_FLAGS[step.cell.result] + ("w" if step.verdict.decision == "warn" else "")
            self._result_flags[step.cell.seq] = flag
            for cell in reversed(self.session.strip):
                if cell[0] == step.cell.seq:
                    cell[2] = _with_result(cell[2], flag)
                    break
            self.loops.observe(step.cell.seq, step.cell.tool, step, policy)
        self._meter(step)
        return step

    def _fold_message(self, event: EventRow) -> None:
        text = event.content or ""
        if text:
            chat_commands.run_in_chat(self.session, self.tiers, text)
        fold.observe_message(
            self.state, Message(at=event.received_at.timestamp(), seq=event.seq), self.policy_for(event)
        )

    def _fold_end(self, event: EventRow) -> None:
        outcome = event.content or "completed"
        end = End(at=event.received_at.timestamp(), outcome=outcome, seq=event.seq, run=event.run or None)
        fold.observe_end(self.state, end, self.policy_for(event))
        self.session.outcome, self.session.ended_at = outcome, event.received_at
        self.loops.end_all(event.received_at)
        self.approvals.withdraw(
            "session_ended", "block", "The call was not run: its session has ended.", "system"
        )

    def refuse(self, event: EventRow) -> None:
        """Mark a call that is refused because a person stopped the session; the engine does not count it."""
        event.decision, event.flags = "stop", "s"
        self._count(event)

    def decide_anew(self, event: EventRow, step: Step, decision: str, message: str = "") -> None:
        """Give the call folded last, which was held, the verdict that an answer (or having nobody to ask) means for it."""
        event.decision, event.flags = decision, event.flags.replace("h", DECISION_FLAGS[decision])
        if self.session.strip and self.session.strip[-1][0] == event.seq:
            self.session.strip[-1][2] = event.flags
        if decision == "stop" and not step.duplicate:
            self.loops.decide_anew(step, decision, message)

    def _count(self, event: EventRow) -> None:
        session = self.session
        session.call_count += 1
        session.token_count += event.tokens
        session.cost_usd = float(session.cost_usd) + float(event.cost_usd)
        session.last_tool = event.tool
        session.outcome, session.ended_at = "", None
        if self.loops.is_guarded and event.decision in ("block", "hold", "stop"):
            session.blocked_count += 1
        session.strip.append([event.seq, event.call_key[:6], event.flags])
        del session.strip[:-STRIP_CELLS]

    def _meter(self, step: Step) -> None:
        session, meter = self.session, step.verdict.meter
        if meter is not None:
            session.meter_kind, session.meter_count, session.meter_limit = (
                meter.kind,
                meter.count,
                meter.limit,
            )
        for kind, error in step.faults:
            log.error("detector_failed", detector=kind, error=error, session=session.external_id)

    def save(self, new_events: Sequence[EventRow] = ()) -> None:
        """Write session, state, marks and incidents, and tell the watchers after commit.

        Parameters
        ----------
        new_events
            Events that are not stored yet, with their marks already on them.
        """
        session = self.session
        writes = Writes()
        self._mark_with_results((*self._marked, *new_events))
        event_rows.add_store(writes, new_events)
        self._add_marks(writes)
        if self.loops.is_touched:
            writes.send()  # the evidence is copied from the events, marks and all
            self.loops.save()
        self.approvals.save()
        if session.evaluated_seq >= session.last_seq:
            session.pending_since = None
        session.state = self._session_state()
        locking.add_write(writes, session)
        tracker_state.add_write(writes, session.pk, self.state)
        writes.send()
        publish_after_commit(session.project_id, Hint("session", session.external_id), *self.loops.hints)

    def _session_state(self) -> str:
        if self.session.is_stopped:
            return SessionState.STOPPED
        if self.session.ended_at is not None:
            return SessionState.ENDED
        if self.approvals.has_open:
            return SessionState.HELD
        return SessionState.LOOPING if self.loops.has_active else SessionState.RUNNING

    def _mark_with_results(self, events: Iterable[EventRow]) -> None:
        """Put what became of a call on its row, where that is still to be written."""
        by_seq = {event.seq: event for event in events}
        for seq in self._result_flags.keys() & by_seq.keys():
            by_seq[seq].flags = _with_result(by_seq[seq].flags, self._result_flags.pop(seq))

    def _add_marks(self, writes: Writes) -> None:
        session, stores_payloads, marked = self.session, self.session.project.stores_payloads, self._marked
        if marked:
            writes.add(
                "UPDATE detection_event e SET call_key = v.call_key, result_digest = v.result_digest, flags = v.flags,"
                " decision = v.decision, arguments = CASE WHEN %s THEN e.arguments END, content = CASE WHEN %s THEN e.content END"
                " FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::text[])"
                " AS v (seq, call_key, result_digest, flags, decision) WHERE e.session_id = %s AND e.seq = v.seq",
                [
                    stores_payloads,
                    stores_payloads,
                    [event.seq for event in marked],
                    [event.call_key for event in marked],
                    [event.result_digest for event in marked],
                    [event.flags for event in marked],
                    [event.decision for event in marked],
                    session.pk,
                ],
            )
        flags, self._result_flags = self._result_flags, {}
        if len(flags) > _FEW_FLAGS:
            writes.add(
                "UPDATE detection_event e SET flags = left(v.flag || translate(e.flags, '?^!e' || v.flag, ''), 12)"
                " FROM unnest(%s::int[], %s::text[]) AS v (seq, flag) WHERE e.session_id = %s AND e.seq = v.seq",
                [[*flags], [*flags.values()], session.pk],
            )
            return
        for seq, flag in flags.items():
            writes.add(
                "UPDATE detection_event SET flags = left(%s || translate(flags, %s, ''), 12) WHERE session_id = %s AND seq = %s",
                [flag, "?^!e" + flag, session.pk, seq],
            )

    def _rebuilt(self) -> State:
        """Fold the session's recent events anew; what they came to then is stored already and stays as it is."""
        state, session = fold.new_state(), self.session
        for event in event_rows.last(session.pk, session.evaluated_seq, REBUILD_EVENTS):
            policy = self.policy_for(event)
            if event.type == EventType.CALL and event.decision != "stop":
                fold.observe_call(state, engine_call(event), policy, self.keyer)
            elif event.type == EventType.RESULT:
                fold.observe_result(state, engine_result(event), policy, self.keyer)
            elif event.type == EventType.MESSAGE:
                fold.observe_message(state, Message(at=event.received_at.timestamp(), seq=event.seq), policy)
        return state


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

    A result that was cut carries the digest of its whole text, spelled in letters so that nothing takes it for a
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


def _with_result(flags: str, result_flag: str) -> str:
    return result_flag + "".join(mark for mark in flags if mark not in "?^!e" and mark not in result_flag)


def finding_as_dict(step_finding: Any) -> dict[str, Any] | None:
    """Return a finding in the public form of verdicts."""
    if step_finding is None:
        return None
    return {
        "kind": step_finding.kind,
        "count": step_finding.count,
        "limit": step_finding.limit,
        "window_seconds": step_finding.window_seconds,
        "window_calls": step_finding.window_calls,
        "confidence": step_finding.confidence,
        "results": step_finding.results,
        "period": step_finding.period,
    }
