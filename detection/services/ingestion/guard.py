"""Evaluates calls before they run: the same folding as in the workers, inside the request, under the same lock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from django.utils import timezone

from detection.engine import messages
from detection.engine.calls import DECISIONS, Step
from detection.engine.policy import Policy, relevant_fields
from detection.models import Approval, Decider, Event, EventType, Session
from detection.services.approvals.documents import approval_reference
from detection.services.approvals.open_approvals import choose_decider
from detection.services.ingestion import ingest
from detection.services.ingestion.ingest import note_first_event
from detection.services.keys import Principal
from detection.services.sessions.actions import stopped_message
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.event_records import EventRecord
from detection.services.sessions.folding import EventEvaluationError, Folding, finding_as_dict
from detection.services.sessions.locked_session import LockedSession, locked_session_of_agent

CORE_SETTINGS = ("enabled", "preset", "mode", "max_repeats", "ttl_seconds")
"""Settings in a verdict without a finding; one with a finding has those of its detector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRequest:
    """The results that an agent got since its last request, and the calls that it wants to make.

    Attributes
    ----------
    results, calls
        Events of the same session, checked by the parser; `calls` may be empty to report results only.
    """

    session: str
    backend: str = ""
    model: str = ""
    agent: str = ""
    parent_session: str = ""
    results: tuple[EventRecord, ...] = ()
    calls: tuple[EventRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The verdict of a call or, among the notices, the finding of a result.

    Attributes
    ----------
    approval
        Of a held call: id, deadline and the address that waits for the decision.
    wordings
        The message by wire shape, where the project has a template for that shape.
    """

    call_id: str
    decision: str
    message: str = ""
    incident: str | None = None
    finding: dict[str, Any] | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    duplicate: bool = False
    approval: dict[str, Any] | None = None
    wordings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GuardResponse:
    """The verdicts, in the order of the calls; `decision` is the strictest of them."""

    session: str
    decision: str
    verdicts: tuple[CallVerdict, ...]
    notices: tuple[CallVerdict, ...] = ()


def guard(principal: Principal, request: GuardRequest) -> GuardResponse:
    """Judge calls before they run, and store them with their verdicts.

    Returns
    -------
    GuardResponse
        After commit. A call whose id is known gets the verdict that it got the first time. When detection itself fails
        on a call, the call is allowed and quarantined with its error.
    """
    ingest.prepare((*request.results, *request.calls), principal.digest_secret)
    quarantined: dict[int, str] = {}
    while True:
        try:
            with locked_session_of_agent(principal, request.session) as locked:
                folding = Folding(locked, quarantined)
                if locked.is_lagging and folding.catch_up():
                    raise _LaggingError(locked.session.pk)
                return _verdicts(folding, request)
        except EventEvaluationError as error:
            quarantined[error.seq] = str(error)[:300]
        except _LaggingError as error:
            evaluate(error.session_id)


class _LaggingError(Exception):
    """More events wait for evaluation than one transaction folds; they are folded first, batch by batch."""

    def __init__(self, session_id: int) -> None:
        super().__init__(session_id)
        self.session_id = session_id


def _verdicts(folding: Folding, request: GuardRequest) -> GuardResponse:
    """Number, fold and store the new events of a request, and answer it."""
    locked, events = folding.locked, (*request.results, *request.calls)
    session, now = locked.session, timezone.now()
    locked.incidents.is_guarded = True
    _take_over_names(session, request)
    known = ingest.known_calls((session.pk, event.type, event.call_id) for event in events if event.call_id)
    fresh: list[EventRecord] = []
    notices: list[CallVerdict] = []
    verdicts: list[CallVerdict] = []
    by_call_id: dict[str, CallVerdict] = {}
    for event in events:
        is_call, place = event.type == EventType.CALL, (session.pk, event.type, event.call_id)
        if event.call_id and place in known:
            if is_call:
                verdicts.append(by_call_id.get(event.call_id) or _stored_verdict(locked, event.call_id))
            continue
        known.add(place)
        ingest.number(event, session, now)
        fresh.append(event)
        verdict = _verdict(folding, event)
        if is_call:
            verdicts.append(verdict)
            by_call_id[event.call_id] = verdict
        elif verdict.decision != "allow":
            notices.append(verdict)
    if not session.project.stores_payloads:
        for event in fresh:
            event.arguments = event.content = None
    locked.events.store(fresh)
    session.evaluated_seq, session.last_event_at = session.last_seq, now
    if session.project.first_event_at is None:
        note_first_event(session.project)
    strictest = max((verdict.decision for verdict in verdicts), key=DECISIONS.index, default="allow")
    return GuardResponse(session.external_id, strictest, tuple(verdicts), tuple(notices))


def _take_over_names(session: Session, request: GuardRequest) -> None:
    session.agent = request.agent or session.agent
    session.backend = request.backend or session.backend
    session.model = request.model or session.model
    session.parent_external_id = request.parent_session or session.parent_external_id


def _verdict(folding: Folding, row: EventRecord) -> CallVerdict:
    locked = folding.locked
    policy = locked.policy_for(row)
    if row.type == EventType.CALL and locked.session.is_stopped_by_person:
        folding.mark_stopped(row)
        message = stopped_message(locked.session)
        row.verdict = {"message": message, "by": "operator", "delivered": True}
        return CallVerdict(row.call_id, "stop", message, None, None, explain(policy, row.tool, None))
    step = folding.fold(row)
    if step is None:
        return CallVerdict(row.call_id, "allow", policy=explain(policy, row.tool, None))
    verdict = _verdict_of_step(folding, row, step, policy)
    if row.type == EventType.CALL and verdict.decision == "hold":
        verdict = _held(folding, row, step, verdict, policy.for_tool(row.tool))
    if row.type == EventType.CALL and verdict.decision != "allow":
        row.verdict = {
            "message": verdict.message,
            "incident": verdict.incident,
            "finding": verdict.finding,
            "policy": verdict.policy,
            "delivered": True,
        }
        if verdict.approval:
            row.verdict["approval"] = verdict.approval["id"]
        if verdict.wordings:
            row.verdict["wordings"] = verdict.wordings
    return verdict


def _held(
    folding: Folding, row: EventRecord, step: Step, verdict: CallVerdict, policy: Policy
) -> CallVerdict:
    """Request an approval of a held call. A remembered decision applies at once; without a decider the call is stopped."""
    locked, finding = folding.locked, step.verdict.finding
    if finding is None or step.duplicate:
        approval = locked.approvals.find(call_key=row.call_key)
        if approval is not None and not approval.is_open:
            folding.replace_decision(row, step, approval.decision)
        return _with_approval(verdict, approval)
    decider = choose_decider(step.verdict.rung, locked.session, finding, policy)
    if not decider:
        text = messages.message("stop", finding, policy, folding.templates.by_rung)
        wordings = folding.templates.for_shapes("stop", finding, policy)
        folding.replace_decision(row, step, "stop", text)
        return replace(verdict, decision="stop", message=text, wordings=wordings)
    known = locked.approvals.find_remembered(row, finding) if decider == Decider.PERSON else None
    incident = locked.incidents.active.get(finding.loop_id)
    approval = locked.approvals.request(row, finding, policy, incident, decider=decider)
    if known is not None:
        locked.approvals.apply_remembered(approval, known, locked.tracker)
        folding.replace_decision(row, step, approval.decision)
    return _with_approval(verdict, approval)


def _with_approval(verdict: CallVerdict, approval: Approval | None) -> CallVerdict:
    """Return the verdict of a held call with the current state of its approval."""
    if approval is None:
        return verdict
    if approval.is_open:
        return replace(verdict, approval=approval_reference(approval))
    return replace(
        verdict,
        decision=approval.decision,
        message=approval.message,
        approval=approval_reference(approval),
        wordings={},
    )


def _verdict_of_step(folding: Folding, row: EventRecord, step: Step, policy: Policy) -> CallVerdict:
    found = step.verdict.finding
    if found is not None and found.detail.get("notice"):
        found = None  # for operators only: who knows that its limit is close behaves otherwise
    incident = folding.locked.incidents.active.get(found.loop_id) if found else None
    message = step.verdict.message
    wordings = folding.templates.for_shapes(step.verdict.rung, found, policy) if found and message else {}
    return CallVerdict(
        call_id=row.call_id,
        decision=step.verdict.decision,
        message=message,
        wordings=wordings,
        incident=incident.public_id if incident else None,
        finding=finding_as_dict(found),
        policy=explain(
            policy, row.tool or (step.cell.tool if step.cell else ""), found.kind if found else None
        ),
        duplicate=step.duplicate,
    )


def explain(policy: Policy, tool: str, kind: str | None) -> dict[str, Any]:
    """Return the settings that decided, each with its source."""
    return policy.for_tool(tool).explain(relevant_fields(kind) if kind else CORE_SETTINGS)


def _stored_verdict(locked: LockedSession, call_id: str) -> CallVerdict:
    row = Event.objects.get(session_id=locked.session.pk, type=EventType.CALL, call_id=call_id)
    stored = row.verdict or {}
    approval = locked.approvals.find(public_id=stored["approval"]) if stored.get("approval") else None
    verdict = CallVerdict(
        call_id=call_id,
        decision=row.decision,
        message=stored.get("message", ""),
        incident=stored.get("incident"),
        finding=stored.get("finding"),
        policy=stored.get("policy", {}),
        duplicate=True,
        wordings=stored.get("wordings", {}),
    )
    return _with_approval(verdict, approval)
