"""Folds events into a locked session: stores the findings of the engine on the event, the strip and the incidents.

Guard and workers share it. The engine evaluates events; the owner of the session writes them.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from operator import attrgetter

import structlog
from django.db import DatabaseError, transaction

from detection import clock
from detection.engine import fold, interventions, messages, silence
from detection.engine.calls import Step, Verdict
from detection.engine.memory import BLOCKING
from detection.engine.policy import Policy
from detection.engine.results.answers import is_refused
from detection.integrations.hosts import can_end_run
from detection.integrations.reach import CAN_BLOCK, OF_PROGRAMS, WATCH_ONLY, reach_of, with_call
from detection.models import Event, EventType, StoppedByKind, call_flags
from detection.models.session_state import (
    HELD_DOWN,
    IDLE_AFTER,
    clear_stop,
    note_ran,
    note_reach,
    note_refused,
    note_verdict,
)
from detection.models.sessions import HOOKS, OTLP, cost_with
from detection.models.stored_verdict import StoredVerdict
from detection.services.events import event_records
from detection.services.events.event_records import EventRecord
from detection.services.policies import message_templates
from detection.services.sessions import chat_commands, families, pruning
from detection.services.sessions.actions import stopped_message
from detection.services.sessions.known_answers import KnownAnswer, find_answer
from detection.services.sessions.locked_session import LockedSession

log = structlog.get_logger(__name__)

BATCH_EVENTS = 1000
"""Events folded in one transaction; a longer backlog takes several, so that no lock is held for long."""
TOLD_CHARACTERS = 40
"""How much of a message at a place in a result shows that the result is the message. More varies with the form."""
SAME_ANSWER_FOR = timedelta(seconds=0.25)
"""A program that has read of a stop calls later than this: its model has to answer first. The calls of one answer ask
for their verdicts at once; the clients wait no longer for one. A judgement, not measured."""
MAX_ERROR_CHARACTERS, MAX_TRACEBACK_CHARACTERS = 300, 8000


class EventEvaluationError(Exception):
    """Folding an event failed. It is to be quarantined, and the session continues without it."""

    def __init__(self, event: EventRecord, error: Exception) -> None:
        super().__init__(_storable(f"{event.type}: {type(error).__name__}: {error}")[:MAX_ERROR_CHARACTERS])
        self.event = event
        # Text, because the objects of a traceback keep all that was read for the transaction.
        self.traceback = _storable("".join(traceback.format_exception(error)))[-MAX_TRACEBACK_CHARACTERS:]


def _storable(text: str) -> str:
    """Return a text without characters that PostgreSQL cannot store, which an error may quote."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "?")


class Quarantine:
    """The quarantined events of one request or task, over all its attempts.

    Parameters
    ----------
    key
        What an event is known by: stored ones, which are read anew, by their numbers, and those of a request, which get
        another number with every attempt, by their records (`id`).
    """

    def __init__(self, key: Callable[[EventRecord], int] = attrgetter("seq")) -> None:
        self._key = key
        self._errors: dict[int, EventEvaluationError] = {}

    def add(self, error: EventEvaluationError) -> None:
        """Quarantine the event that raised."""
        self._errors[self._key(error.event)] = error

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._errors)

    def error_of(self, event: EventRecord) -> EventEvaluationError | None:
        """Return the error of a quarantined event, None for any other."""
        return self._errors.get(self._key(event))


class Folding:
    """Folds events of one locked session, of whose family the `ignored` ones are not waited for.

    When an event raises `EventEvaluationError`, leave the session's block by that exception, so that nothing is
    written, and start again with the event in `quarantine`.

    Attributes
    ----------
    integration
        Through which the events in hand were sent if an agent waits for the response; empty for reported ones.
    answer
        Of the guarded call that was folded last: the known answer that it gets instead of running.
    earlier
        The sessions of the family that have to be evaluated before the event at which catching up has ended.
    """

    def __init__(self, locked: LockedSession, quarantine: Quarantine, ignored: Collection[int] = ()) -> None:
        self.locked = locked
        self.quarantine = quarantine
        self._ignored = ignored
        self.templates = message_templates.templates_of(locked.session.project)
        self.integration = ""
        self.answer: KnownAnswer | None = None
        self.earlier: list[int] = []
        self._results: dict[int, EventRecord] = {}
        self._latest_end: EventRecord | Event | None = None

    def catch_up(self, limit: int | None = None) -> bool:
        """Fold stored events after the cursor, at most `limit` or else `BATCH_EVENTS`; return whether some are left.

        It ends before an event of a family while other sessions of that have `earlier` ones.
        """
        session, limit = self.locked.session, limit or BATCH_EVENTS
        waiting = event_records.after(session.key, session.evaluated_seq, limit)
        for event in waiting:
            self.earlier = self.earlier_than(event, event.received_at)
            if self.earlier:
                return True
            self.fold(event)
            self.locked.events.note_evaluated(event)
            session.evaluated_seq = event.seq
        if len(waiting) < limit:
            session.evaluated_seq = session.last_seq
        return session.evaluated_seq < session.last_seq

    def earlier_than(self, event: EventRecord, at: datetime) -> list[int]:
        """Return the sessions with earlier events than one of this time, if it is judged with those of its family."""
        locked, policy = self.locked, self.locked.policy_for(event)
        if not policy.values["enabled"]:
            return []
        grows = event.type == EventType.CALL and families.grows(locked.session, event.tool, policy)
        if not grows and not families.is_watched(policy):
            return []
        return [one for one in locked.earlier_in_family(at, starts=grows) if one not in self._ignored]

    def fold(self, event: EventRecord, policy: Policy | None = None) -> Step | None:
        """Fold one event.

        Parameters
        ----------
        policy
            The settings in effect for it, if the caller needed them before.

        Returns
        -------
        Step or None
            None for quarantined events, and for all but calls, results, messages and compactions.

        Raises
        ------
        EventEvaluationError
            When anything but the database failed.
        """
        self.answer = None
        known_error = self.quarantine.error_of(event) if self.quarantine else None
        if known_error is not None:
            self._pass_over(event, known_error)
            return None
        self.locked.incidents.begin(event)
        try:
            policy = policy or self.locked.policy_for(event)
            if event.type == EventType.CALL:
                return self._fold_call(event, policy)
            if event.type == EventType.RESULT:
                return self._fold_result(event, policy)
            if event.message is not None:
                return self._fold_message(event)
            if event.type == EventType.USAGE:
                self._fold_usage(event, policy)
            elif event.type == EventType.END:
                self._fold_end(event, policy)
            elif event.type == EventType.HEARTBEAT:
                self._fold_heartbeat(event, policy)
        except DatabaseError:
            raise
        except Exception as error:
            log.exception("event_quarantined", session=self.locked.session.external_id, seq=event.seq)
            raise EventEvaluationError(event, error) from error
        return None

    def _pass_over(self, event: EventRecord, error: EventEvaluationError) -> None:
        """Skip a quarantined event; a quarantined call is allowed and counted."""
        self.locked.events.quarantine(event, str(error), error.traceback)
        if event.type == EventType.CALL:
            event.call_key, event.decision, event.flags = "", "allow", call_flags.PENDING
            self._count(event)
            self._note_verdict(event, Step())

    def _fold_call(self, event: EventRecord, policy: Policy) -> Step:
        locked = self.locked
        # Where detection is disabled, not even the state is read.
        is_enabled = policy.for_tool(event.tool).values["enabled"]
        step = self._observe_call(event, policy) if is_enabled else Step()
        event.call_key, event.decision = step.call_key or "", step.verdict.decision
        has_run = not locked.incidents.is_guarded
        result = step.cell.result if step.cell else "pending"
        event.flags = call_flags.of_call(result, event.decision, has_run=has_run)
        self._count(event)
        if event.decision == "stop" or locked.session.stopped_by_kind:
            self._note_verdict(event, step)
        rule = locked.contained(event.tool, agent=event.agent, model=event.model) if has_run else None
        if rule is not None and event.received_at >= rule.created_at:
            # It ran although it was contained: nobody could refuse it.
            session, at = locked.session, event.received_at
            note_verdict(session, "stop", is_guarded=False, call_number=session.call_count, at=at)
        locked.incidents.observe(event.seq, event.tool, step, policy, event)
        self._report(step, event.tool)
        self._watch(event, policy)
        return step

    def _observe(self, event: EventRecord, policy: Policy) -> Step:
        locked = self.locked
        templates = self.templates.by_rung
        if locked.session.seen_reach or not can_end_run(locked.session.integration):
            templates = {**messages.OF_HOSTS_THAT_GO_ON, **templates}
        return fold.observe(locked.tracker, event, policy, locked.keyer, templates)

    def _observe_call(self, event: EventRecord, policy: Policy) -> Step:
        locked = self.locked
        grows = families.grows(locked.session, event.tool, policy)
        if grows or families.is_watched(policy):
            locked.enter_family(1, event.tokens, event.cost_usd, starts=grows)
        if log.is_enabled_for(logging.DEBUG):
            before = pruning.remembered(locked.tracker, event, policy)
            step = self._observe(event, policy)
            for one in before.pruned(locked.tracker):
                log.debug(
                    "calls_pruned",
                    session=locked.session.external_id,
                    signature=one.signature,
                    calls=one.calls,
                    reason=one.reason,
                )
            log.debug(
                "call_signature",
                session=locked.session.external_id,
                tool=event.tool,
                signature=step.call_key,
                seq=event.seq,
            )
        else:
            step = self._observe(event, policy)
        if step.verdict.reuses is not None and locked.incidents.is_guarded:
            self.answer = find_answer(locked.session, step.verdict.reuses, event.received_at, self._results)
            if self.answer is None:
                self._block_normally(step.verdict, policy.for_tool(event.tool))
        finding = step.verdict.finding
        if step.verdict.decision == "hold" and finding is not None and not locked.incidents.is_guarded:
            # A call that has run already opens no approval; one that asked before it may still wait for its own.
            self._close_hold(finding.calls_digest)
        return step

    def _close_hold(self, calls_digest: str) -> None:
        if calls_digest not in self.locked.approvals.open:
            interventions.close_hold(self.locked.tracker, calls_digest)

    def _block_normally(self, verdict: Verdict, policy: Policy) -> None:
        """Block a call whose known result is not stored whole."""
        if verdict.finding is not None:
            verdict.ending, verdict.reuses = None, None
            verdict.message = messages.message("block", verdict.finding, policy, self.templates.by_rung)

    def _fold_result(self, event: EventRecord, policy: Policy) -> Step:
        locked = self.locked
        if event.closes:
            self._results[event.closes] = event
        elif self.integration.startswith(HOOKS):
            # Its host ran a call without the hook before it.
            locked.session.call_reaches = with_call(locked.session.call_reaches, WATCH_ONLY)
        if event.closes and (refused := self._refused_call_that_ran(event)) is not None:
            self._run_nevertheless(refused)
        if not policy.values["enabled"]:
            return Step()
        if families.is_watched(policy):
            locked.enter_family()
        step = self._observe(event, policy)
        event.result_digest = step.result_digest or ""
        if step.cell is not None and step.cell.decision in BLOCKING:
            locked.events.put_result_if_reported(
                step.cell.seq, call_flags.of_result(step.cell.result, "allow")
            )
            locked.incidents.observe(step.cell.seq, step.cell.tool, step, policy, event)
        elif step.cell is not None:
            flags = call_flags.of_result(step.cell.result, step.verdict.decision)
            locked.events.put_result(step.cell.seq, flags)
            locked.incidents.observe(step.cell.seq, step.cell.tool, step, policy, event)
        has_run = step.cell is not None and step.cell.decision not in BLOCKING
        self._report(step, step.cell.tool if step.cell and has_run else None)
        self._watch(event, policy)
        return step

    def _fold_message(self, event: EventRecord) -> Step:
        locked = self.locked
        if event.type == EventType.MESSAGE and event.is_of_user:
            self._end_stop()
        if event.type == EventType.MESSAGE and event.is_of_user and event.content:
            out = chat_commands.run_in_chat(
                locked.session, locked.overrides, event.content, lambda: locked.tracker, top=locked.top
            )
            event.reply = "\n".join(out.lines)
        policy = locked.policy_for(event)
        if not policy.values["enabled"]:
            return Step()
        step = self._observe(event, policy)
        locked.incidents.observe(event.seq, "", step, policy, event)
        self._report(step, "")
        return step

    def _fold_usage(self, event: EventRecord, policy: Policy) -> None:
        locked = self.locked
        if policy.values["enabled"]:
            self._observe(event, policy)
        locked.session.token_count += event.tokens
        locked.session.cost_usd = cost_with(locked.session.cost_usd, event.cost_usd)
        if policy.values["enabled"] and families.is_watched(policy):
            locked.enter_family()
        locked.incidents.add_usage(event)

    def _fold_end(self, event: EventRecord, policy: Policy) -> None:
        locked, outcome = self.locked, event.content or "completed"
        if policy.values["enabled"]:
            self._observe(event, policy)
        self._latest_end = event
        locked.session.outcome, locked.session.ended_at = outcome, event.received_at
        if locked.session.stopped_by_kind in HELD_DOWN:
            locked.incidents.stop(event.received_at)
        locked.incidents.end_all(event.received_at)
        locked.approvals.withdraw(
            "session_ended", "block", "The call was not run: its session has ended.", "system"
        )

    def _fold_heartbeat(self, event: EventRecord, policy: Policy) -> None:
        if event.closes and silence.shortest_limit(policy) is not None:
            self._observe(event, policy)
            self._watch(event, policy)

    def _watch(self, event: EventRecord, policy: Policy) -> None:
        """Schedule a check for when something of the session can stall at the earliest, unless one is due before."""
        session = self.locked.session
        limits = (silence.shortest_limit(policy), silence.shortest_limit(policy.for_tool(event.tool)))
        seconds = min((one for one in limits if one is not None), default=None)
        if seconds is None or session.is_imported:
            return
        due = event.received_at + timedelta(seconds=seconds)
        session.silence_check_at = min(due, session.silence_check_at or due)

    def begin_run(self, call: EventRecord) -> None:
        """End the stop of detection if a call that asks for a verdict begins another run.

        Its session has ended since or was idle, or it names another run than the call that was stopped.
        """
        session = self.locked.session
        if (
            session.ended_at is not None
            or call.received_at - session.last_event_at > IDLE_AFTER
            or (call.run and call.received_at != session.stopped_at and call.run != self._stopped_call().run)
        ):
            self._end_stop()

    def _end_stop(self) -> None:
        """End the stop of detection, whose run is over: what comes now is no sign that it continued."""
        if self.locked.session.stopped_by_kind == StoppedByKind.DETECTION:
            clear_stop(self.locked.session)

    def _stopped_call(self) -> Event:
        """Return the stored call that detection stopped last; an empty one if it is gone."""
        calls = Event.objects.filter(session=self.locked.session, type=EventType.CALL, decision="stop")
        return calls.order_by("-seq").first() or Event()

    def decide_unseen(self, event: EventRecord, decision: str = "stop") -> None:
        """Give a call a decision that was made without the engine, which does not count it: its session is stopped."""
        event.decision, event.flags = decision, call_flags.of_call("same", decision)
        self._count(event)

    def note_refused(self, event: EventRecord) -> None:
        """Record that a call was blocked because its session is stopped: its loops have ended by that."""
        note_refused(self.locked.session)
        if self.locked.session.stopped_by_kind in HELD_DOWN:
            self.locked.incidents.stop(event.received_at)

    def replace_decision(self, event: EventRecord, step: Step, decision: str, message: str = "") -> None:
        """Set the decision of the held call that was folded last: that of its approval, or a stop without a decider."""
        self.locked.events.replace_decision(event, decision)
        self._note_verdict(event, step)
        if decision == "stop" and not step.duplicate:
            self.locked.incidents.decide_anew(step, decision, message)

    def _note_verdict(self, event: EventRecord, step: Step) -> None:
        session, finding = self.locked.session, step.verdict.finding
        reason = (finding.kind, messages.describe(finding)) if finding and event.decision == "stop" else ()
        is_guarded, at = self.locked.incidents.is_guarded, event.received_at
        is_allowed = event.decision in ("allow", "warn")
        if is_guarded and is_allowed and session.stopped_by_kind == StoppedByKind.DETECTION:
            since = at - (session.stopped_at or at)
            if not since or event.round == self._stopped_call().round:
                return  # Of the answer that was stopped: the run may end with it.
            if since > SAME_ANSWER_FOR and self.integration in OF_PROGRAMS:
                note_reach(session, CAN_BLOCK)
        note_verdict(
            session, event.decision, *reason, is_guarded=is_guarded, call_number=session.call_count, at=at
        )
        if session.stopped_by_kind and not is_guarded:
            note_ran(session)

    def _refused_call_that_ran(self, result: EventRecord) -> Event | None:
        """Return the refused call that ran, by its result: it is not what the agent got instead of running it."""
        session, text = self.locked.session, result.content or ""
        flags = next((str(cell[2]) for cell in session.strip if cell[0] == result.closes), "")
        if not text or not call_flags.has_not_run(flags) or is_refused(text):
            return None
        call = Event.objects.get(session=session, seq=result.closes)
        verdict = call.verdict or StoredVerdict()
        if call.decision == "block" and (
            verdict.finding is None or verdict.reuses or verdict.ending == "delay"
        ):
            return None  # Its result may be that of another call, or that of the call after its pause.
        approval = self.locked.approvals.find(public_id=verdict.approval) if verdict.approval else None
        if approval is not None and approval.decision == "allow":
            return None
        sent = [stopped_message(session), verdict.message, *verdict.message_by_shape.values()]
        sent += [approval.message] if approval else []
        return None if any(message[:TOLD_CHARACTERS] in text for message in sent if message) else call

    def _run_nevertheless(self, call: Event) -> None:
        """Note that a refused call ran: nothing blocks the calls of its session, and this one was not blocked."""
        session = self.locked.session
        note_reach(session, WATCH_ONLY)
        if session.stopped_by_kind and call_flags.was_refused(call.flags):
            note_ran(session)
        self.locked.events.run_nevertheless(call.seq)
        session.blocked_count = max(0, session.blocked_count - 1)
        if call.verdict is not None and call.verdict.incident:
            self.locked.incidents.run_nevertheless(call.verdict.incident)

    def _count(self, event: EventRecord) -> None:
        session = self.locked.session
        session.call_count += 1
        session.call_reaches = with_call(session.call_reaches, reach_of(self.integration))
        event.call_number = session.call_count
        session.token_count += event.tokens
        session.cost_usd = cost_with(session.cost_usd, event.cost_usd)
        session.last_tool = event.tool
        if session.ended_at is not None and not self._is_late(event):
            session.outcome, session.ended_at = "", None
        if self.locked.incidents.is_guarded:
            session.blocked_count += event.decision in ("block", "hold", "stop")
            session.warned_count += event.decision == "warn"
        self.locked.events.add_call(event)

    def _is_late(self, event: EventRecord) -> bool:
        """Return whether a call of an ended session was made before its end: telemetry may send the end first."""
        session = self.locked.session
        if session.integration != OTLP or event.occurred_at is None:
            return False
        if self._latest_end is None:
            ends = Event.objects.filter(session=session, type=EventType.END, seq__lt=event.seq)
            self._latest_end = ends.order_by("-seq").first()
        ended_at = self._latest_end.occurred_at if self._latest_end else None
        return ended_at is not None and event.occurred_at <= ended_at

    def _report(self, step: Step, tool: str | None) -> None:
        """Show the meter of a step on the session, and log its faults and, once it is committed, its detection.

        Parameters
        ----------
        tool
            None for the result of a call that was to be blocked: its detection was logged with the call.
        """
        session, meter = self.locked.session, step.verdict.meter
        if meter is not None:
            session.meter_kind, session.meter_count = meter.kind, meter.count
            session.meter_limit = meter.limit
        for kind, error in step.faults:
            log.error("detector_failed", detector=kind, error=error, session=session.external_id)
        if tool is not None and step.verdict.rung is not None and not clock.is_past():
            line = detection_log_line(session.external_id, tool, step)
            if line is not None:
                level, event, fields = line
                transaction.on_commit(lambda: log.log(level, event, **fields))


def detection_log_line(session: str, tool: str, step: Step) -> tuple[int, str, dict[str, object]] | None:
    """Return level, name and fields of the log line of a detection; None if the ladder did not react."""
    verdict, finding = step.verdict, step.verdict.finding
    if finding is None or verdict.rung is None or step.duplicate or finding.detail.get("notice"):
        return None
    return (
        logging.WARNING,
        "loop_detected",
        {
            "session": session,
            "tool": tool,
            "detector": finding.kind,
            "count": finding.count,
            "limit": finding.limit,
            "rung": verdict.rung,
            "decision": verdict.decision,
        },
    )
