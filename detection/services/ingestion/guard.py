"""Evaluates calls before they run: the same folding as in the workers, inside the request, under the same lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import structlog
from django.db import DatabaseError, DataError, OperationalError

from detection import clock
from detection.engine import interventions, messages, silence
from detection.engine.calls import DECISIONS, Step
from detection.engine.memory import BLOCKING
from detection.engine.policy import Policy, relevant_fields
from detection.integrations.message_lists import KnownMessages
from detection.models import Approval, Event, EventType, MessageRole, Session
from detection.services.errors import NotStorable
from detection.services.events.event_records import EventRecord
from detection.services.ingestion import ingest
from detection.services.ingestion.ingest import note_first_event
from detection.services.ingestion.session_queue import session_queue
from detection.services.keys import Principal
from detection.services.redaction.redaction import Redactor
from detection.services.sessions import read_messages
from detection.services.sessions.actions import stopped_message
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.folding import EventEvaluationError, Folding, Quarantine, finding_as_dict
from detection.services.sessions.known_answers import KnownAnswer, find_answer
from detection.services.sessions.locked_session import LockedSession, locked_session_of_agent
from detection.services.tracking.documents import approval_reference
from detection.services.tracking.open_approvals import choose_decider
from detection.sql.pipeline import OutdatedError
from detection.sql.retries import retry_conflicts

log = structlog.get_logger(__name__)

CORE_SETTINGS = ("enabled", "preset", "mode", "max_repeats", "ttl_seconds")
"""Settings in a verdict without a finding; with a finding, a verdict has those of its detector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRequest:
    """The results since an agent's last request, and the calls that it wants to make.

    Attributes
    ----------
    integration
        What sends them: ``guard``, or ``hooks/`` and the name of the coding agent.
    results, calls
        Events of the same session, checked by the parser; `calls` may be empty to report results only.
    history
        Of a list of messages: what comes before `calls`, in order. Its calls have run, and get no verdict.
    is_resent
        Whether the calls were sent before, whatever their outcome.
    awaits_retry
        Whether the agent cannot wait for an approval, and gets the decision when it makes the call again.
    messages
        Memory of the session's message lists, before and after this request.
    """

    session: str
    backend: str = ""
    model: str = ""
    agent: str = ""
    parent_session: str = ""
    integration: str = "guard"
    results: tuple[EventRecord, ...] = ()
    calls: tuple[EventRecord, ...] = ()
    history: tuple[EventRecord, ...] = ()
    is_resent: bool = False
    awaits_retry: bool = False
    messages: tuple[bytes, KnownMessages] | None = None

    def with_names(self, redactor: Redactor) -> GuardRequest:
        """Return the request with marks for the secrets in its names; those of its events are redacted with them."""
        names = self.session, self.backend, self.model, self.agent, self.parent_session
        if not redactor.may_change("\n".join(names)):
            return self
        session, backend, model, agent, parent = map(redactor.name, names)
        return replace(
            self, session=session, backend=backend, model=model, agent=agent, parent_session=parent
        )

    @property
    def events(self) -> tuple[EventRecord, ...]:
        """All events, in the order in which they count."""
        return (*self.history, *self.results, *self.calls)


class MessagesChangedError(Exception):
    """Another request has read messages of the session since this one did."""


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The verdict of a call or, among the notices, the finding of a result.

    Attributes
    ----------
    rung, detection_number
        The reaction of the ladder, if any, and its number; see `engine.calls.Verdict`.
    approval
        Of a held call: id, deadline and the address that waits for the decision.
    message_by_shape
        The message by wire shape, where the project has a template for that shape.
    ending
        What a blocked call asks of the agent: ``finish``, ``reuse`` or ``delay``; None for any other verdict.
    retry_after_seconds
        Of a delay: how long the agent is to wait before it makes the call again.
    reused
        For a reused result: sequence number of its call, and its age in seconds.
    """

    call_id: str
    decision: str
    message: str = ""
    incident: str | None = None
    finding: dict[str, Any] | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    duplicate: bool = False
    approval: dict[str, Any] | None = None
    message_by_shape: dict[str, str] = field(default_factory=dict)
    rung: str | None = None
    detection_number: int = 0
    ending: str | None = None
    retry_after_seconds: int | None = None
    reused: dict[str, Any] | None = None

    def with_answer(self, answer: KnownAnswer | None) -> CallVerdict:
        """Return the verdict with a reused result below its messages."""
        if answer is None:
            return self
        return replace(
            self,
            message=answer.below(self.message),
            message_by_shape={shape: answer.below(text) for shape, text in self.message_by_shape.items()},
            reused={"seq": answer.seq, "age_seconds": round(answer.age_seconds)},
        )


@dataclass(frozen=True, slots=True)
class GuardResponse:
    """The verdicts, in the order of the calls; `decision` is the strictest of them."""

    session: str
    decision: str
    verdicts: tuple[CallVerdict, ...]
    notices: tuple[CallVerdict, ...] = ()

    def with_call_ids(self, sent: Mapping[str, str]) -> GuardResponse:
        """Return the response with the ids that the client gave to calls whose ids contain a secret."""
        if all(call_id == sent_id for call_id, sent_id in sent.items()):
            return self
        verdicts, notices = (
            tuple(replace(one, call_id=sent.get(one.call_id, one.call_id)) for one in ones)
            for ones in (self.verdicts, self.notices)
        )
        return replace(self, verdicts=verdicts, notices=notices)


def guard(principal: Principal, request: GuardRequest) -> GuardResponse:
    """Judge calls before they run, and store them with their verdicts.

    Returns
    -------
    GuardResponse
        After commit. A call that was sent before gets its first verdict again. When detection itself fails
        on a call, the call is allowed and quarantined with its error.

    Raises
    ------
    SessionBusy
        If too many requests wait for the session.
    NotStorable
        If the database cannot store an event of the request; nothing is stored then.
    MessagesChangedError
        If `messages` is outdated; nothing is stored then.
    """
    events = request.events
    sent_ids = [event.call_id for event in events]
    request = request.with_names(principal.redactor)
    ingest.prepare(events, principal)
    sent = {event.call_id: sent_id for event, sent_id in zip(events, sent_ids, strict=True)}
    quarantine = Quarantine(events)
    trusts_recent = waits_for_family = True
    while True:
        try:
            response = _evaluate(
                principal,
                request,
                quarantine,
                trusts_recent=trusts_recent,
                waits_for_family=waits_for_family,
            )
            return response.with_call_ids(sent)
        except OutdatedError:
            trusts_recent = False
        except EventEvaluationError as error:
            if quarantine.is_new(error.event):
                quarantine.add(error)
            else:
                evaluate(error.event.session_id)
        except _LaggingError as error:
            # Once: other sessions may receive events without an end.
            waits_for_family = waits_for_family and not error.is_of_family
            for session_id in error.session_ids:
                _evaluate_waiting(session_id, is_of_family=error.is_of_family)
        except (DataError, UnicodeError):
            log.exception("request_not_storable", session=request.session)
            raise NotStorable from None


@retry_conflicts
def _evaluate(
    principal: Principal,
    request: GuardRequest,
    quarantine: Quarantine,
    *,
    trusts_recent: bool,
    waits_for_family: bool,
) -> GuardResponse:
    ingest.forget_numbers(request.events)
    with (
        session_queue.place(principal.project_id, request.session),
        locked_session_of_agent(
            principal, request.session, request.events, trusts_recent=trusts_recent
        ) as locked,
    ):
        folding = Folding(locked, quarantine)
        if locked.is_lagging and folding.catch_up():
            raise _LaggingError([locked.session.pk])
        _take_over_names(locked.session, request)
        if waits_for_family:
            _check_family(folding, request)
        if request.messages is not None:
            before, known = request.messages
            if read_messages.load(locked.session) != before:
                raise MessagesChangedError
            response = _verdicts(folding, request)
            if request.calls and not request.is_resent:
                is_blocked = all(verdict.decision in BLOCKING for verdict in response.verdicts)
                known = known.with_answer("blocked" if is_blocked else "called", clock.now().timestamp())
            after = known.dump()
            if after != before:
                locked.read_messages = after
            return response
        return _verdicts(folding, request)


class _LaggingError(Exception):
    """Events of the session, or of others in its family, have to be folded first, batch by batch."""

    def __init__(self, session_ids: list[int], *, is_of_family: bool = False) -> None:
        super().__init__(session_ids)
        self.session_ids, self.is_of_family = session_ids, is_of_family


def _evaluate_waiting(session_id: int, *, is_of_family: bool) -> None:
    """Fold the stored events of a session; that of another one in the family which fails rejects no request."""
    try:
        evaluate(session_id)
    except DatabaseError as error:
        if not is_of_family or isinstance(error, OperationalError):
            raise
        log.exception("family_not_evaluated", session_id=session_id)


def _check_family(folding: Folding, request: GuardRequest) -> None:
    """Have the stored events of the family folded before a request that is judged with them: they came before it."""
    now = clock.now()
    for event in request.events:
        earlier = folding.earlier_than(event, now)
        if earlier:
            raise _LaggingError(earlier, is_of_family=True)


def _verdicts(folding: Folding, request: GuardRequest) -> GuardResponse:
    """Number, fold and store the new events of a request, and return its verdicts."""
    locked, events = folding.locked, request.events
    session, now = locked.session, clock.now()
    fresh_ids = ingest.claim_ids(session.project, {event.session: session for event in events}, events)
    identity = locked.identity
    request_round = ""
    fresh: list[EventRecord] = []
    notices: list[CallVerdict] = []
    verdicts: list[CallVerdict] = []
    by_seq: dict[int, CallVerdict] = {}
    held: list[tuple[int, EventRecord]] = []
    for place, event in enumerate(events):
        is_call = event.type == EventType.CALL
        has_run = is_call and place < len(request.history)
        _note_writer(event, locked)
        locked.incidents.is_guarded = not has_run
        is_known_id = bool(event.id) and not fresh_ids.pop(event.id, False)
        repeated = identity.repeated_by(session.pk, event)
        if is_known_id or repeated is not None or (is_call and request.is_resent):
            if is_call and not has_run:
                repeated = repeated or identity.latest_like(session.pk, event)
                verdicts.append(_first_verdict(folding, event, repeated, by_seq))
            continue
        ingest.number(event, session, now, identity, request_round=request_round)
        fresh.append(event)
        if has_run:
            folding.fold(event)
            continue
        verdict = _verdict(folding, event, by_seq, awaits_retry=request.awaits_retry)
        if is_call:
            request_round = request_round or (event.round if "round" in event.assigned else "")
            held += [(len(verdicts), event)] if verdict.decision == "hold" else []
            verdicts.append(verdict)
            by_seq[event.seq] = verdict
        elif verdict.decision != "allow":
            notices.append(verdict)
    for approval in locked.approvals.apply_remembered(locked.tracker) if held else ():
        for place, event in held:
            if (verdicts[place].approval or {}).get("id") == approval.public_id:
                verdicts[place] = _with_approval(verdicts[place], approval)
                _store_decision(folding, event, approval)
    if not session.project.stores_payloads:
        # Copies: the events are folded again if this transaction has to be repeated.
        fresh = [event.without_payload() for event in fresh]
    locked.events.store(fresh)
    session.evaluated_seq, session.last_event_at = session.last_seq, now
    if session.project.first_event_at is None:
        note_first_event(session.project)
    strictest = max((verdict.decision for verdict in verdicts), key=DECISIONS.index, default="allow")
    return GuardResponse(session.external_id, strictest, tuple(verdicts), tuple(notices))


def _note_writer(event: EventRecord, locked: LockedSession) -> None:
    """Note on a prompt of a list whether it came as only programs write; see `integrations.people`."""
    if event.circumstances is not None:
        values = locked.policy_for(event).values
        is_of_program = event.circumstances.is_of_program(
            values["program_repeats"], values["program_seconds"]
        )
        event.role = MessageRole.PROGRAM if is_of_program else MessageRole.USER


def _take_over_names(session: Session, request: GuardRequest) -> None:
    session.note_integration(request.integration)
    session.agent = request.agent or session.agent
    session.backend = request.backend or session.backend
    session.model = request.model or session.model
    session.parent_external_id = request.parent_session or session.parent_external_id


def _verdict(
    folding: Folding, row: EventRecord, by_seq: Mapping[int, CallVerdict], *, awaits_retry: bool
) -> CallVerdict:
    locked = folding.locked
    policy = locked.policy_for(row)
    is_stopped = locked.session.is_stopped_by_person or locked.session.is_refused
    if row.type == EventType.CALL and is_stopped:
        folding.mark_stopped(row)
        message = stopped_message(locked.session)
        by = "operator" if locked.session.is_stopped_by_person else "detection"
        row.verdict = {"message": message, "by": by, "delivered": True}
        return CallVerdict(row.call_id, "stop", message, None, None, explain(policy, row.tool, None))
    step = folding.fold(row)
    if step is None:
        return CallVerdict(row.call_id, "allow", policy=explain(policy, row.tool, None))
    verdict = _verdict_of_step(folding, row, step, policy)
    if verdict.decision == "stop" and locked.session.is_refused and "stop" not in folding.templates.by_rung:
        verdict = replace(verdict, message=stopped_message(locked.session))
    if row.type == EventType.CALL and verdict.decision == "hold":
        policy = policy.for_tool(row.tool)
        if step.duplicate:
            verdict = _held_copy(folding, row, step, verdict, by_seq, awaits_retry=awaits_retry)
        else:
            verdict = _held(folding, row, step, verdict, policy, awaits_retry=awaits_retry)
    if row.type == EventType.CALL and (verdict.decision != "allow" or verdict.finding):
        row.verdict = {
            "message": verdict.message,
            "incident": verdict.incident,
            "finding": verdict.finding,
            "policy": verdict.policy,
            "rung": verdict.rung,
            "detection_number": verdict.detection_number,
            "delivered": True,
        }
        if verdict.ending:
            row.verdict |= {"ending": verdict.ending, "pause_seconds": verdict.retry_after_seconds or 0}
        if folding.answer is not None:
            row.verdict["reuses"] = folding.answer.seq
        if verdict.approval:
            row.verdict["approval"] = verdict.approval["id"]
        if verdict.message_by_shape:
            row.verdict["message_by_shape"] = verdict.message_by_shape
    # The answer is stored once, with the call that got it.
    return verdict.with_answer(folding.answer) if row.type == EventType.CALL else verdict


def _held(
    folding: Folding,
    row: EventRecord,
    step: Step,
    verdict: CallVerdict,
    policy: Policy,
    *,
    awaits_retry: bool,
) -> CallVerdict:
    """Request an approval of a held call, or let it wait for that of its loop; without a decider it is stopped.

    A repeated call whose agent did not wait for the decision gets that decision; it is identified by its loop and key,
    because its id is different.
    """
    locked, finding = folding.locked, step.verdict.finding
    if finding is None:
        return verdict
    waiting = locked.approvals.join(row, finding, awaits_retry=awaits_retry)
    if waiting is not None:
        return _with_approval(verdict, waiting)
    decided = locked.approvals.take_for_retry(finding.loop_id, row.call_key)
    if decided is not None:
        folding.replace_decision(row, step, decided.decision, decided.message)
        interventions.close_hold(locked.tracker, finding.loop_id)
        return _with_approval(verdict, decided)
    decider = choose_decider(step.verdict.rung, locked.session, finding, policy)
    if not decider:
        text = messages.message("stop", finding, policy, folding.templates.by_rung)
        message_by_shape = folding.templates.for_shapes("stop", finding, policy)
        folding.replace_decision(row, step, "stop", text)
        interventions.close_hold(locked.tracker, finding.loop_id)
        return replace(verdict, decision="stop", message=text, message_by_shape=message_by_shape)
    incident = locked.incidents.incident_of(finding.loop_id)
    approval = locked.approvals.request(
        row, finding, policy, incident, decider=decider, awaits_retry=awaits_retry
    )
    return _with_approval(verdict, approval)


def _store_decision(folding: Folding, row: EventRecord, approval: Approval) -> None:
    """Store the decision on a call that waited for it only until the end of its request."""
    folding.locked.events.replace_decision(row, approval.decision)
    row.verdict = {**(row.verdict or {}), "message": approval.message}
    row.verdict.pop("message_by_shape", None)


def _held_copy(
    folding: Folding,
    row: EventRecord,
    step: Step,
    verdict: CallVerdict,
    by_seq: Mapping[int, CallVerdict],
    *,
    awaits_retry: bool,
) -> CallVerdict:
    """Give a call that repeats a held one of its round the verdict that this got: one decision is for both."""
    finding = step.verdict.finding
    if finding is None:
        return verdict
    first = by_seq.get(finding.first_seq) or _stored_verdict(folding.locked, row.call_id, finding.first_seq)
    if first.decision == "hold":
        waiting = folding.locked.approvals.join(row, finding, awaits_retry=awaits_retry)
        return _with_approval(verdict, waiting)
    folding.replace_decision(row, step, first.decision)
    return replace(first, call_id=row.call_id, duplicate=True)


def _with_approval(verdict: CallVerdict, approval: Approval | None) -> CallVerdict:
    """Return the verdict of a held call with the current state of its approval."""
    if approval is None:
        return verdict
    if approval.is_open:
        return replace(verdict, approval=approval_reference(approval, verdict.call_id))
    return replace(
        verdict,
        decision=approval.decision,
        message=approval.message,
        approval=approval_reference(approval, verdict.call_id),
        message_by_shape={},
    )


def _verdict_of_step(folding: Folding, row: EventRecord, step: Step, policy: Policy) -> CallVerdict:
    found = step.verdict.finding
    if found is not None and found.detail.get("notice"):
        found = None  # for operators only: who knows that its limit is close behaves otherwise
    incident = folding.locked.incidents.incident_of(found.loop_id) if found else None
    message = step.verdict.message
    said = "block" if step.verdict.rung == "reuse" and step.verdict.ending is None else step.verdict.rung
    message_by_shape = (
        folding.templates.for_shapes(said, found, policy, step.verdict.pause_seconds)
        if found and message
        else {}
    )
    return CallVerdict(
        call_id=row.call_id,
        decision=step.verdict.decision,
        message=message,
        message_by_shape=message_by_shape,
        incident=incident.public_id if incident else None,
        finding=finding_as_dict(found),
        policy=explain(
            policy, row.tool or (step.cell.tool if step.cell else ""), found.kind if found else None
        ),
        duplicate=step.duplicate,
        rung=step.verdict.rung if found else None,
        detection_number=step.verdict.detection_number if found else 0,
        ending=step.verdict.ending,
        retry_after_seconds=step.verdict.pause_seconds or None,
    )


def explain(policy: Policy, tool: str, kind: str | None) -> dict[str, Any]:
    """Return the settings that decided, each with its source."""
    return policy.for_tool(tool).explain(relevant_fields(kind) if kind else CORE_SETTINGS)


def _first_verdict(
    folding: Folding, event: EventRecord, repeated: EventRecord | None, by_seq: Mapping[int, CallVerdict]
) -> CallVerdict:
    """Return the verdict that a call got when it was sent first, in this request or before."""
    if repeated is None:  # its event id is that of another event
        policy = explain(folding.locked.policy_for(event), event.tool, None)
        return CallVerdict(event.call_id, "allow", policy=policy, duplicate=True)
    return by_seq.get(repeated.seq) or _stored_verdict(folding.locked, repeated.call_id, repeated.seq)


def _stored_verdict(locked: LockedSession, call_id: str, seq: int) -> CallVerdict:
    row = Event.objects.get(session_id=locked.session.pk, seq=seq)
    stored, now = row.verdict or {}, clock.now()
    left = None
    is_delayed = stored.get("ending") == "delay" and row.decision == "block"
    if is_delayed and locked.session.is_stopped_by_person:
        message = stopped_message(locked.session)
        return CallVerdict(call_id, "stop", message, policy=stored.get("policy", {}), duplicate=True)
    if is_delayed:
        left = ceil(stored["pause_seconds"] - (now - row.received_at).total_seconds())
        if left <= 0:
            # The pause is over: the call that was counted then runs now.
            interventions.run_after_pause(locked.tracker, seq)
            silence.observe_heartbeat(locked.tracker, seq, now.timestamp())
            locked.events.run_after_pause(seq)
            locked.session.blocked_count = max(0, locked.session.blocked_count - 1)
            row.decision = "allow"
    if stored.get("ending") == "delay" and row.decision == "allow":
        # Also if it is sent once more: what was said before the pause is over.
        return CallVerdict(call_id, "allow", policy=stored.get("policy", {}), duplicate=True)
    approval = locked.approvals.find(public_id=stored["approval"]) if stored.get("approval") else None
    verdict = CallVerdict(
        call_id=call_id,
        decision=row.decision,
        message=stored.get("message", ""),
        incident=stored.get("incident"),
        finding=stored.get("finding"),
        policy=stored.get("policy", {}),
        duplicate=True,
        message_by_shape=stored.get("message_by_shape", {}),
        rung=stored.get("rung"),
        detection_number=stored.get("detection_number", 0),
        ending=stored.get("ending") if row.decision == "block" else None,
        retry_after_seconds=left,
    )
    if stored.get("reuses"):
        answer = find_answer(locked.session, stored["reuses"], now, {})
        verdict = verdict.with_answer(answer) if answer else replace(verdict, ending=None)
    return _with_approval(verdict, approval)
