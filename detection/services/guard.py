"""Answers before a call runs: the same folding as in the workers, inside the request, under the same lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from detection.engine.calls import DECISIONS, Step
from detection.engine.policy import Policy, relevant_fields
from detection.models import Event, EventType, Project, Session
from detection.services import ingest
from detection.services.evaluation import PoisonedEvent, SessionWork, finding_as_dict
from detection.services.ingest import EventIn
from detection.services.keys import Principal
from detection.services.redaction import Redactor

MAX_BACKLOG_BATCHES = 5
"""More unevaluated events than these are left to the workers; the verdict then does without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardIn:
    """What an agent asks: the results it has since, and the calls it wants to make.

    Attributes
    ----------
    results, calls
        Events of the same session, checked by the edge parser; `calls` may be empty to report results only.
    """

    session: str
    backend: str = ""
    model: str = ""
    agent: str = ""
    parent_session: str = ""
    results: tuple[EventIn, ...] = ()
    calls: tuple[EventIn, ...] = ()


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """The answer for one call (or, among the notices, what a result brought to light)."""

    call_id: str
    decision: str
    message: str = ""
    incident: str | None = None
    finding: dict[str, Any] | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class GuardOut:
    """The answers, in the order of the calls; `decision` is the strictest of them."""

    session: str
    decision: str
    verdicts: tuple[CallVerdict, ...]
    notices: tuple[CallVerdict, ...] = ()


def guard(principal: Principal, request: GuardIn) -> GuardOut:
    """Judge calls before they run, and store them with their verdicts.

    Returns
    -------
    GuardOut
        After commit. A call whose id is known gets the verdict that it got the first time. When detection itself fails
        on a call, the call is allowed and parked with its error.
    """
    parked: dict[int, str] = {}
    while True:
        try:
            return _guard_once(principal, request, parked)
        except PoisonedEvent as poison:
            parked[poison.seq] = str(poison)[:300]


@transaction.atomic
def _guard_once(principal: Principal, request: GuardIn, parked: dict[int, str]) -> GuardOut:
    session = ingest.lock_sessions(principal, {request.session})[request.session]
    work = SessionWork(session, parked)
    batches = 0
    while session.evaluated_seq < session.last_seq and batches < MAX_BACKLOG_BATCHES and work.catch_up():
        batches += 1
    is_caught_up = session.evaluated_seq >= session.last_seq
    _note_request(session, request)
    known = _known(session, (*request.results, *request.calls))
    project, now = session.project, timezone.now()
    secret = bytes(project.digest_secret)
    redactor = Redactor(secret)
    rows: list[Event] = []
    notices: list[CallVerdict] = []
    verdicts: list[CallVerdict] = []
    by_call_id: dict[str, CallVerdict] = {}
    for event in (*request.results, *request.calls):
        is_call = event.type == EventType.CALL
        if event.call_id and (event.type, event.call_id) in known:
            if is_call:
                verdicts.append(by_call_id.get(event.call_id) or _stored_verdict(session, event.call_id))
            continue
        session.last_seq += 1
        row = ingest.make_row(redactor, secret, event, session, session.last_seq, now)
        if event.call_id:
            known.add((event.type, event.call_id))
        rows.append(row)
        verdict = _judge(work, row, session)
        if is_call:
            verdicts.append(verdict)
            by_call_id[row.call_id] = verdict
        elif verdict.decision != "allow":
            notices.append(verdict)
    if not project.stores_payloads:
        for row in rows:
            row.arguments = row.content = None
    ingest.store(rows)
    if is_caught_up:
        session.evaluated_seq = session.last_seq
    session.last_event_at = now
    work.save(rows)
    if project.first_event_at is None:
        Project.objects.filter(pk=project.pk, first_event_at=None).update(first_event_at=now)
    strictest = max((verdict.decision for verdict in verdicts), key=DECISIONS.index, default="allow")
    return GuardOut(session.external_id, strictest, tuple(verdicts), tuple(notices))


def _note_request(session: Session, request: GuardIn) -> None:
    session.agent = request.agent or session.agent
    session.backend = request.backend or session.backend
    session.model = request.model or session.model
    session.parent_external_id = request.parent_session or session.parent_external_id


def _known(session: Session, events: Sequence[EventIn]) -> set[tuple[str, str]]:
    places = [(session.pk, event.type, event.call_id) for event in events if event.call_id]
    return {(place[1], place[2]) for place in ingest.known_calls(places)}


def _judge(work: SessionWork, row: Event, session: Session) -> CallVerdict:
    policy = work.policy_for(row)
    if row.type == EventType.CALL and session.is_stopped:
        work.refuse(row)
        message = stopped_message(session)
        row.verdict = {"message": message, "by": "operator", "delivered": True}
        return CallVerdict(row.call_id, "stop", message, None, None, explain(policy, row.tool, None))
    step = work.fold(row)
    if step is None:
        return CallVerdict(row.call_id, "allow", policy=explain(policy, row.tool, None))
    verdict = _as_verdict(work, row, step, policy)
    if row.type == EventType.CALL and verdict.decision != "allow":
        row.verdict = {
            "message": verdict.message,
            "incident": verdict.incident,
            "finding": verdict.finding,
            "policy": verdict.policy,
            "delivered": True,
        }
    return verdict


def _as_verdict(work: SessionWork, row: Event, step: Step, policy: Policy) -> CallVerdict:
    found = step.verdict.finding
    incident = work.loops.active.get(found.loop_id) if found else None
    return CallVerdict(
        call_id=row.call_id,
        decision=step.verdict.decision,
        message=step.verdict.message,
        incident=incident.public_id if incident else None,
        finding=finding_as_dict(found),
        policy=explain(
            policy, row.tool or (step.cell.tool if step.cell else ""), found.kind if found else None
        ),
        duplicate=step.duplicate,
    )


def explain(policy: Policy, tool: str, kind: str | None) -> dict[str, Any]:
    """Return the settings that decided, each with the tier it came from."""
    return policy.for_tool(tool).explain(relevant_fields(kind or "repeat"))


def stopped_message(session: Session) -> str:
    """Say that a person stopped the session, in the words that the agent's user gets to read."""
    reason = f" Reason given: {session.stop_reason}" if session.stop_reason else ""
    return (
        f"This session was stopped by {session.stopped_by or 'an operator'} in LoopGuard.{reason} "
        "No further tool call is allowed until someone resumes it."
    )


def _stored_verdict(session: Session, call_id: str) -> CallVerdict:
    row = Event.objects.get(session_id=session.pk, type=EventType.CALL, call_id=call_id)
    stored = row.verdict or {}
    return CallVerdict(
        call_id=call_id,
        decision=row.decision,
        message=stored.get("message", ""),
        incident=stored.get("incident"),
        finding=stored.get("finding"),
        policy=stored.get("policy", {}),
        duplicate=True,
    )
