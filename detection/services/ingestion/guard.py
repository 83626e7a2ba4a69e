"""Evaluates calls before they run: the same folding as in the workers, inside the request, under the same lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import structlog
from django.db import DatabaseError, DataError, OperationalError

from detection import clock
from detection.engine import interventions, messages, silence
from detection.engine.calls import DECISIONS, Step
from detection.engine.memory import BLOCKING
from detection.engine.policy import Policy, relevant_fields
from detection.integrations.labels import NO_LABELS, Labels
from detection.integrations.message_lists import KnownMessages
from detection.integrations.people import Circumstances
from detection.models import (
    Approval,
    ContainmentReaction,
    Event,
    EventType,
    MessageRole,
    SessionKey,
    StoppedByKind,
)
from detection.models.session_state import HELD_DOWN, clear_stop, note_refused
from detection.models.stored_verdict import StoredVerdict, finding_document
from detection.selectors.containments import ContainmentRule
from detection.services import agent_messages
from detection.services.errors import NotStorable
from detection.services.events.event_records import EventRecord
from detection.services.ingestion import ingest
from detection.services.ingestion.session_queue import session_queue
from detection.services.keys import Principal
from detection.services.redaction.redaction import Redactor
from detection.services.sessions import containment, read_messages
from detection.services.sessions.actions import stopped_message
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.folding import EventEvaluationError, Folding, Quarantine
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
        What sends them; see `Session.integration`.
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
    labels
        Tags and metadata for the session.
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
    labels: Labels = NO_LABELS

    def with_names(self, redactor: Redactor) -> GuardRequest:
        """Return the request with marks for the secrets in its names; those of its events are redacted with them."""
        names = self.session, self.backend, self.model, self.agent, self.parent_session
        request = self
        if self.labels is not NO_LABELS:
            request = replace(self, labels=redactor.labels(self.labels))
        if not redactor.may_change(names):
            return request
        session, backend, model, agent, parent = map(redactor.name, names)
        return replace(
            request, session=session, backend=backend, model=model, agent=agent, parent_session=parent
        )

    @property
    def events(self) -> tuple[EventRecord, ...]:
        """All events, in the order in which they count."""
        return (*self.history, *self.results, *self.calls)


class MessagesChangedError(Exception):
    """Another request has read messages of the session since this one did."""


@dataclass(frozen=True, slots=True)
class CallResponse:
    """The response to a call or, among the notices, the finding of a result.

    Attributes
    ----------
    verdict
        The verdict, as the event keeps it.
    duplicate
        Whether the call was sent before.
    approval
        Of a held call: id, deadline and the address that waits for the decision.
    retry_after_seconds
        Of a delay: how much of the pause is left.
    answer
        The known result that the call gets instead of running.
    """

    call_id: str
    decision: str
    verdict: StoredVerdict
    duplicate: bool = False
    approval: dict[str, Any] | None = None
    retry_after_seconds: int | None = None
    answer: KnownAnswer | None = None

    def message(self, shape: str | None = None) -> str:
        """Return the message for the agent, in a wire shape for which the project may have a template."""
        message = self.verdict.message_by_shape.get(shape or "", self.verdict.message)
        return message if self.answer is None else self.answer.below(message)

    def with_approval(self, approval: Approval | None) -> CallResponse:
        """Return the response to a held call with the current state of its approval."""
        if approval is None:
            return self
        reference = approval_reference(approval, self.call_id)
        if approval.is_open:
            return replace(self, approval=reference)
        verdict = replace(self.verdict, message=approval.message, message_by_shape={})
        return replace(self, decision=approval.decision, verdict=verdict, approval=reference)


@dataclass(frozen=True, slots=True)
class GuardResponse:
    """The verdicts, in the order of the calls; `decision` is the strictest of them."""

    session: str
    decision: str
    verdicts: tuple[CallResponse, ...]
    notices: tuple[CallResponse, ...] = ()

    def with_call_ids(self, sent: Mapping[str, str]) -> GuardResponse:
        """Return the response with the ids that the client gave to calls whose ids contain a secret."""
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
    renamed = {
        event.call_id: sent_id
        for event, sent_id in zip(events, sent_ids, strict=True)
        if event.call_id != sent_id
    }
    quarantine = Quarantine(id)
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
            return response.with_call_ids(renamed) if renamed else response
        except OutdatedError:
            trusts_recent = False
        except EventEvaluationError as error:
            if any(error.event is event for event in events):
                quarantine.add(error)
            else:
                evaluate(SessionKey(principal.project_id, error.event.session_id))
        except _LaggingError as error:
            # Once: other sessions may receive events without an end.
            waits_for_family = waits_for_family and not error.is_of_family
            for session_id in error.session_ids:
                _evaluate_waiting(
                    SessionKey(principal.project_id, session_id), is_of_family=error.is_of_family
                )
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
    events = request.events
    ingest.forget_numbers(events)
    with (
        session_queue.place(principal.project_id, request.session),
        locked_session_of_agent(principal, request.session, events, trusts_recent=trusts_recent) as locked,
    ):
        folding, session = Folding(locked, quarantine), locked.session
        if session.evaluated_seq < session.last_seq and folding.catch_up():
            raise _LaggingError([session.pk])
        folding.integration = request.integration
        session.note_sender(
            request.integration, request.agent, request.backend, request.model, request.parent_session,
            principal.public_id,
        )  # fmt: skip
        session.note_labels(request.labels)
        now = clock.now()
        for event in events if waits_for_family else ():
            # The stored events of the family came before the request that is judged with them.
            if earlier := folding.earlier_than(event, now):
                raise _LaggingError(earlier, is_of_family=True)
        if request.messages is not None and read_messages.load(session) != request.messages[0]:
            raise MessagesChangedError
        response = judge(folding, request)
        if request.messages is not None:
            before, known = request.messages
            if request.calls and not request.is_resent:
                is_blocked = all(verdict.decision in BLOCKING for verdict in response.verdicts)
                known = known.with_answer("blocked" if is_blocked else "called", clock.now().timestamp())
            after = known.dump()
            if after != before:
                locked.read_messages = after
        return response


class _LaggingError(Exception):
    """Events of the session, or of others in its family, have to be folded first, batch by batch."""

    def __init__(self, session_ids: list[int], *, is_of_family: bool = False) -> None:
        super().__init__(session_ids)
        self.session_ids, self.is_of_family = session_ids, is_of_family


def _evaluate_waiting(key: SessionKey, *, is_of_family: bool) -> None:
    """Fold the stored events of a session; that of another one in the family which fails rejects no request."""
    try:
        evaluate(key)
    except DatabaseError as error:
        if not is_of_family or isinstance(error, OperationalError):
            raise
        log.exception("family_not_evaluated", session_id=key.session_id)


def judge(folding: Folding, request: GuardRequest) -> GuardResponse:
    """Number, fold and store the new events of a request to a locked session, and return its verdicts."""
    locked, events = folding.locked, request.events
    session, now = locked.session, clock.now()
    locked.approvals.awaits_retry = request.awaits_retry
    fresh_ids = ingest.claim_ids(session.project_id, {event.id: session.id for event in events if event.id})
    identity = locked.identity
    request_round = ""
    fresh: list[EventRecord] = []
    notices: list[CallResponse] = []
    verdicts: list[CallResponse] = []
    by_seq: dict[int, CallResponse] = {}
    held: list[tuple[int, EventRecord]] = []
    for place, event in enumerate(events):
        is_call = event.type == EventType.CALL
        has_run = is_call and place < len(request.history)
        if event.circumstances is not None:
            event.role = _writer(event.circumstances, locked.policy_for(event))
        locked.incidents.is_guarded = not has_run
        is_known_id = bool(event.id) and not fresh_ids.pop(event.id, False)
        repeated = identity.repeated_by(session.id, event)
        if is_known_id or repeated is not None or (is_call and request.is_resent):
            if is_call and not has_run:
                repeated = repeated or identity.latest_like(session.pk, event)
                verdicts.append(_repeated(locked, event, repeated, by_seq))
            continue
        ingest.number(event, session, now, identity, request_round=request_round)
        fresh.append(event)
        if has_run:
            folding.fold(event)
            continue
        verdict = _judge(folding, event, by_seq)
        if verdict is None:
            continue
        if is_call:
            request_round = request_round or (event.round if "round" in event.assigned else "")
            held += [(len(verdicts), event)] if verdict.decision == "hold" else []
            verdicts.append(verdict)
            by_seq[event.seq] = verdict
        else:
            notices.append(verdict)
    if held:
        _apply_remembered(locked, held, verdicts)
    if message_id := locked.containments.message_for(session.external_id, session.agent):
        _hand_out_message(locked, message_id, fresh, verdicts)
    locked.events.store(fresh)
    session.evaluated_seq, session.last_event_at = session.last_seq, now
    if session.project.first_event_at is None:
        ingest.note_first_event(session.project)
    strictest = max((verdict.decision for verdict in verdicts), key=DECISIONS.index, default="allow")
    return GuardResponse(session.external_id, strictest, tuple(verdicts), tuple(notices))


def _apply_remembered(
    locked: LockedSession, held: list[tuple[int, EventRecord]], verdicts: list[CallResponse]
) -> None:
    """Give held calls, by their place among the verdicts, the decisions that are remembered for them."""
    for approval in locked.approvals.apply_remembered(locked.tracker):
        for place, event in held:
            if (verdicts[place].approval or {}).get("id") == approval.public_id:
                verdicts[place] = verdicts[place].with_approval(approval)
                # It waited only until the end of its request.
                locked.events.replace_decision(event, approval.decision)
                event.verdict = replace(verdicts[place].verdict, approval=approval.public_id)


def _hand_out_message(
    locked: LockedSession, public_id: str, fresh: list[EventRecord], verdicts: list[CallResponse]
) -> None:
    """Add the message that waits for the agent to the first verdict on a new call that does not wait itself."""
    session = locked.session
    calls = {event.call_id: event for event in fresh if event.type == EventType.CALL}
    places = (
        at
        for at, one in enumerate(verdicts)
        if one.call_id in calls and not one.duplicate and one.decision != "hold"
    )
    place = next(places, None)
    text = "" if place is None else agent_messages.take(session.project_id, public_id, session.external_id)
    if place is None or not text:
        return
    response, event = verdicts[place], calls[verdicts[place].call_id]
    known = response.verdict
    verdict = replace(
        known,
        message=f"{known.message}\n\n{text}".strip(),
        message_by_shape={shape: f"{own}\n\n{text}" for shape, own in known.message_by_shape.items()},
    )
    decision = "warn" if response.decision == "allow" else response.decision
    verdicts[place] = replace(response, decision=decision, verdict=verdict)
    event.decision, event.verdict = decision, verdict


def _writer(circumstances: Circumstances, policy: Policy) -> MessageRole:
    """Return whether a prompt of a list is of a user, or came as only programs write."""
    limits = policy.values["program_repeats"], policy.values["program_seconds"]
    return MessageRole.PROGRAM if circumstances.is_of_program(*limits) else MessageRole.USER


def _judge(folding: Folding, event: EventRecord, by_seq: Mapping[int, CallResponse]) -> CallResponse | None:
    """Fold a new call or result, and return its verdict, which is stored with a call unless it is a plain allow.

    None for a result without a notice for the agent.
    """
    locked, session = folding.locked, folding.locked.session
    policy = locked.policy_for(event)
    is_call = event.type == EventType.CALL
    rule = locked.contained(event.tool, agent=event.agent, model=event.model) if is_call else None
    if rule is not None and not session.is_stopped_by_person:
        return _contained(folding, event, rule, policy)
    if is_call and session.stopped_by_kind == StoppedByKind.CONTAINMENT:
        clear_stop(session)  # it was lifted
    if is_call and session.stopped_by_kind == StoppedByKind.DETECTION:
        folding.begin_run(event)
    if is_call and session.stopped_by_kind and (session.is_stopped_by_person or session.is_refused):
        folding.decide_unseen(event)
        folding.note_refused(event)
        by = "operator" if session.is_stopped_by_person else "detection"
        event.verdict = StoredVerdict(message=stopped_message(session), stopped_by=by)
        verdict = replace(event.verdict, policy=explain(policy, event.tool, None))
        return CallResponse(event.call_id, "stop", verdict)
    step = folding.fold(event, policy)
    if not is_call and (step is None or step.verdict.decision == "allow"):
        return None
    if step is None:
        return CallResponse(event.call_id, "allow", StoredVerdict(policy=explain(policy, event.tool, None)))
    response = CallResponse(
        event.call_id,
        step.verdict.decision,
        _verdict_of_step(folding, event, step, policy),
        duplicate=step.duplicate,
        retry_after_seconds=step.verdict.pause_seconds or None,
        answer=folding.answer,
    )
    if is_call and response.decision == "hold" and step.duplicate:
        response = _held_with_first(folding, event, step, response, by_seq)
    elif is_call and response.decision == "hold":
        response = _held(folding, event, step, response, policy.for_tool(event.tool))
    if is_call and (response.decision != "allow" or response.verdict.finding):
        approval = response.approval["id"] if response.approval else None
        event.verdict = replace(response.verdict, approval=approval)
    return response


def _contained(folding: Folding, event: EventRecord, rule: ContainmentRule, policy: Policy) -> CallResponse:
    """Stop, block or hold a call that a containment covers; the engine does not see it."""
    locked = folding.locked
    text = containment.message_of(rule, event.tool, folding.templates.by_rung)
    verdict = StoredVerdict(message=text, stopped_by="containment")
    explained = explain(policy, event.tool, None)
    if rule.reaction != ContainmentReaction.HOLD:
        folding.decide_unseen(event, rule.reaction)
        if rule.reaction == ContainmentReaction.STOP:
            containment.note_stop(locked.session, rule)
            folding.note_refused(event)
        event.verdict = verdict
        return CallResponse(event.call_id, rule.reaction, replace(verdict, policy=explained))
    event.call_key = containment.key_of(locked, event, policy)
    decided = locked.approvals.take_for_retry(rule.public_id, event.call_key, takes_allowed=True)
    if decided is not None:
        folding.decide_unseen(event, decided.decision)
        event.verdict = replace(verdict, message=decided.message, approval=decided.public_id)
        response = CallResponse(event.call_id, decided.decision, replace(event.verdict, policy=explained))
        return response.with_approval(decided)
    folding.decide_unseen(event, "hold")
    approval = locked.approvals.hold_contained(
        event, rule.public_id, containment.summary_of(rule), policy.for_tool(event.tool)
    )
    event.verdict = replace(verdict, approval=approval.public_id)
    response = CallResponse(event.call_id, "hold", replace(event.verdict, policy=explained))
    return response.with_approval(approval)


def _verdict_of_step(folding: Folding, event: EventRecord, step: Step, policy: Policy) -> StoredVerdict:
    locked, verdict, found = folding.locked, step.verdict, step.verdict.finding
    if found is not None and found.detail.get("notice"):
        found = None  # for operators only: who knows that its limit is close behaves otherwise
    message, by_shape = verdict.message, {}
    if found and message:
        said = "block" if verdict.rung == "reuse" and verdict.ending is None else verdict.rung
        by_shape = folding.templates.for_shapes(said, found, policy, verdict.pause_seconds)
    if verdict.decision == "stop" and locked.session.is_refused and "stop" not in folding.templates.by_rung:
        message = stopped_message(locked.session)
    incident = locked.incidents.incident_of(found.calls_digest) if found else None
    tool = event.tool or (step.cell.tool if step.cell else "")
    return StoredVerdict(
        message=message,
        message_by_shape=by_shape,
        incident=incident.public_id if incident else None,
        finding=finding_document(found) if found else None,
        policy=explain(policy, tool, found.kind if found else None),
        rung=verdict.rung if found else None,
        detection_number=verdict.detection_number if found else 0,
        ending=verdict.ending,
        pause_seconds=verdict.pause_seconds,
        reuses=folding.answer.seq if folding.answer else None,
    )


def explain(policy: Policy, tool: str, kind: str | None) -> dict[str, Any]:
    """Return the settings that decided, each with its source."""
    return policy.for_tool(tool).explain(relevant_fields(kind) if kind else CORE_SETTINGS)


def _held(
    folding: Folding,
    event: EventRecord,
    step: Step,
    response: CallResponse,
    policy: Policy,
) -> CallResponse:
    """Request an approval of a held call, or let it wait for that of its loop; without a decider it is stopped.

    A repeated call whose agent did not wait for the decision gets that decision; it is identified by its loop and key,
    because its id is different.
    """
    locked, finding = folding.locked, step.verdict.finding
    if finding is None:
        return response
    waiting = locked.approvals.join(event, finding)
    if waiting is not None:
        return response.with_approval(waiting)
    decided = locked.approvals.take_for_retry(finding.calls_digest, event.call_key)
    if decided is not None:
        folding.replace_decision(event, step, decided.decision, decided.message)
        interventions.close_hold(locked.tracker, finding.calls_digest)
        return response.with_approval(decided)
    decider = choose_decider(step.verdict.rung, locked.session, finding, policy)
    if not decider:
        text = messages.message("stop", finding, policy, folding.templates.by_rung)
        by_shape = folding.templates.for_shapes("stop", finding, policy)
        folding.replace_decision(event, step, "stop", text)
        interventions.close_hold(locked.tracker, finding.calls_digest)
        verdict = replace(response.verdict, message=text, message_by_shape=by_shape)
        return replace(response, decision="stop", verdict=verdict)
    incident = locked.incidents.incident_of(finding.calls_digest)
    approval = locked.approvals.request(event, finding, policy, incident, decider=decider)
    return response.with_approval(approval)


def _held_with_first(
    folding: Folding,
    event: EventRecord,
    step: Step,
    response: CallResponse,
    by_seq: Mapping[int, CallResponse],
) -> CallResponse:
    """Give a call that repeats a held one of its round the verdict that this got: one decision is for both."""
    locked, finding = folding.locked, step.verdict.finding
    if finding is None:
        return response
    first = by_seq.get(finding.first_seq) or _first_response(locked, event.call_id, finding.first_seq)
    if first.decision == "hold":
        return response.with_approval(locked.approvals.join(event, finding))
    folding.replace_decision(event, step, first.decision)
    return replace(first, call_id=event.call_id, duplicate=True)


def _repeated(
    locked: LockedSession,
    event: EventRecord,
    repeated: EventRecord | None,
    by_seq: Mapping[int, CallResponse],
) -> CallResponse:
    """Return the response that a call got when it was sent first, in this request or before."""
    if repeated is None:  # its event id is that of another event
        policy = explain(locked.policy_for(event), event.tool, None)
        return CallResponse(event.call_id, "allow", StoredVerdict(policy=policy), duplicate=True)
    return by_seq.get(repeated.seq) or _first_response(locked, repeated.call_id, repeated.seq)


def _first_response(locked: LockedSession, call_id: str, seq: int) -> CallResponse:
    """Return the response to a stored call, as it is now: a pause may be over, and an approval decided."""
    event = Event.objects.get(session=locked.session, seq=seq)
    verdict, now = event.verdict or StoredVerdict(), clock.now()
    allowed = CallResponse(call_id, "allow", StoredVerdict(policy=verdict.policy), duplicate=True)
    left = None
    if verdict.ending == "delay" and event.decision == "block":
        if locked.session.stopped_by_kind in HELD_DOWN:
            note_refused(locked.session)
            stopped = replace(allowed.verdict, message=stopped_message(locked.session))
            return replace(allowed, decision="stop", verdict=stopped)
        left = ceil(verdict.pause_seconds - (now - event.received_at).total_seconds())
        if left <= 0:
            # The pause is over: the call that was counted then runs now.
            interventions.run_after_pause(locked.tracker, seq)
            silence.observe_heartbeat(locked.tracker, seq, now.timestamp())
            locked.events.run_after_pause(seq)
            locked.session.blocked_count = max(0, locked.session.blocked_count - 1)
            return allowed
    if verdict.ending == "delay" and event.decision == "allow":
        # Also if it is sent once more: what was said before the pause is over.
        return allowed
    answer = find_answer(locked.session, verdict.reuses, now, {}) if verdict.reuses else None
    if event.decision != "block" or (verdict.reuses and answer is None):
        verdict = replace(verdict, ending=None)
    approval = locked.approvals.find(public_id=verdict.approval) if verdict.approval else None
    response = CallResponse(
        call_id, event.decision, verdict, duplicate=True, retry_after_seconds=left, answer=answer
    )
    return response.with_approval(approval)
