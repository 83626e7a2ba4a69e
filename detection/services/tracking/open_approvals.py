"""The open approvals of a locked session: request, close, save.

Everything here runs under the session's row lock in the caller's transaction. Decisions of people and of the judge
are applied by `decisions` and `judge_consultation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.db import connection
from django.db.models import F, Func, Value
from django.db.models.functions import Coalesce

from detection import clock, jobs
from detection.engine import interventions, messages, silence
from detection.engine.calls import Finding
from detection.engine.detectors import detector_for
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.models import (
    AllowedCall,
    Approval,
    ApprovalState,
    Decider,
    Event,
    Incident,
    IncidentActivity,
    RememberedDecision,
    Session,
    SessionState,
    Unattended,
)
from detection.models.approvals import CONTAINMENT, DONE
from detection.models.session_state import note_verdict
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.judging import judge
from detection.services.policies import message_templates
from detection.services.tracking.outcomes import (
    ApprovalOutcome,
    apply_outcome,
    person_outcome,
    unattended_outcome,
)
from detection.services.tracking.tracker import IncidentTracker
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit, publish_decision_after_commit

JUDGE_TIMEOUT_SECONDS = 15.0
"""Time for a worker to receive the task, plus the judge's own deadline."""

MAX_RETRY_KEYS = 64


def new_approval(
    session: Session,
    event: EventRecord,
    finding: Finding,
    policy: Policy,
    decider: str,
    incident: Incident | None = None,
) -> Approval:
    """Return the approval of a held call; nothing is stored. The parameters are those of `OpenApprovals.request`."""
    is_judge = decider == Decider.JUDGE
    seconds = JUDGE_TIMEOUT_SECONDS if is_judge else policy.values["answer_timeout_seconds"]
    now = clock.now()
    summary = messages.describe(finding)
    return Approval(
        project_id=session.project_id,
        session=session,
        incident=incident,
        decider=decider,
        seq=event.seq,
        call_id=event.call_id,
        call_key=event.call_key,
        tool=event.tool,
        agent=event.agent,
        run=event.run,
        calls_digest=finding.calls_digest,
        kind=finding.kind,
        count=finding.count,
        limit=finding.limit,
        window_seconds=finding.window_seconds,
        unit=str(finding.detail.get("unit", ""))[:16],
        summary=(summary[:1].upper() + summary[1:])[:300],
        requested_at=now,
        deadline=now + timedelta(seconds=seconds),
        unattended="stop" if is_judge else policy.values["unattended_reaction"],
    )


class OpenApprovals:
    """The open approvals of one locked session. A session that is not held costs no query.

    Attributes
    ----------
    awaits_retry
        Whether the agent of this request does not wait; see `Approval.retry_keys`.
    """

    def __init__(self, session: Session, incidents: IncidentTracker) -> None:
        self.session = session
        self.awaits_retry = False
        self._incidents = incidents
        self._open: dict[str, Approval] | None = None if session.state == SessionState.HELD else {}
        self._new: list[Approval] = []
        self._changed: dict[str, Approval] = {}
        self._reopened: list[Approval] = []
        self._remembered: list[tuple[Approval, RememberedDecision]] = []
        self._activity: list[tuple[Approval, str, str, str]] = []

    @property
    def open(self) -> dict[str, Approval]:
        """The open approvals by loop."""
        if self._open is None:
            rows = Approval.objects.filter(session=self.session, state=ApprovalState.OPEN)
            self._open = {row.calls_digest: row for row in rows}
        return self._open

    @property
    def has_open(self) -> bool:
        """Whether a call of this session is held."""
        return any(approval.is_open for approval in self.open.values())

    @property
    def has_overdue(self) -> bool:
        """Whether an approval is open past its deadline."""
        return any(approval.is_overdue(clock.now()) for approval in self.open.values())

    def join(self, event: EventRecord, finding: Finding) -> Approval | None:
        """Let a held call wait for the open approval of its loop, and return that; None if there is none.

        One decision is for all calls that wait for it, also where they came with one request.
        """
        known = self.open.get(finding.calls_digest)
        if known is not None:
            known.held_calls += 1
            known.count = max(known.count, finding.count)
            self._await_retry(known, event)
            self._note_change(known)
        return known

    def request(
        self,
        event: EventRecord,
        finding: Finding,
        policy: Policy,
        incident: Incident | None,
        *,
        decider: str,
    ) -> Approval:
        """Return a new approval that a held call waits for. Its loop must have no open one; see `join`.

        Parameters
        ----------
        event
            The call, with its verdict.
        policy
            Effective for the tool of the call; has the timeout and the unattended reaction.
        decider
            One of `Decider`.
        """
        approval = new_approval(self.session, event, finding, policy, decider, incident)
        self._await_retry(approval, event)
        self.open[finding.calls_digest] = approval
        self._new.append(approval)
        note = f"Decided by: {approval.get_decider_display().lower()}"
        self._activity.append((approval, SYSTEM.name, "approval_requested", note))
        if decider == Decider.JUDGE:
            jobs.judge_after_commit(approval.project_id, approval.public_id)
        elif (remembered := self._find_remembered(event, finding)) is not None:
            self._remembered.append((approval, remembered))
        return approval

    def hold_contained(
        self, event: EventRecord, containment_id: str, summary: str, policy: Policy
    ) -> Approval:
        """Let a call wait for a person because a containment holds it, and return its approval.

        One decision is for all calls of the session that wait because of it.
        """
        known = self.open.get(containment_id)
        if known is not None:
            known.held_calls += 1
            self._await_retry(known, event)
            self._note_change(known)
            return known
        now = clock.now()
        approval = Approval(
            project_id=self.session.project_id,
            session=self.session,
            seq=event.seq,
            call_id=event.call_id,
            call_key=event.call_key,
            tool=event.tool,
            agent=event.agent,
            run=event.run,
            calls_digest=containment_id,
            kind=CONTAINMENT,
            count=0,
            limit=0,
            summary=summary[:300],
            requested_at=now,
            deadline=now + timedelta(seconds=policy.values["answer_timeout_seconds"]),
            # Nothing that is contained runs because nobody looked.
            unattended=Unattended.STOP
            if policy.values["unattended_reaction"] == "stop"
            else Unattended.BLOCK,
        )
        self._await_retry(approval, event)
        self.open[containment_id] = approval
        self._new.append(approval)
        return approval

    def _await_retry(self, approval: Approval, event: EventRecord) -> None:
        if not self.awaits_retry:
            approval.retry_keys = []
        elif event.call_key not in approval.retry_keys:
            approval.retry_keys = [*approval.retry_keys, event.call_key][-MAX_RETRY_KEYS:]

    def find(self, **field: str) -> Approval | None:
        """Return the newest approval with a ``call_key`` or ``public_id``, including changes of this transaction."""
        ((name, value),) = field.items()
        for approval in [*reversed(self._new), *self._changed.values(), *self.open.values()]:
            if getattr(approval, name) == value:
                return approval
        return Approval.objects.filter(session=self.session, **field).order_by("-id").first()

    def take_for_retry(
        self, calls_digest: str, call_key: str, *, takes_allowed: bool = False
    ) -> Approval | None:
        """Return, once for each held call, the closed approval whose decision applies when it is made again."""
        rows = Approval.objects.filter(
            session=self.session, calls_digest=calls_digest, retry_keys__contains=[call_key]
        )
        approval = rows.exclude(state=ApprovalState.OPEN).order_by("-id").first()
        if approval is None:
            return None
        rows.exclude(state=ApprovalState.OPEN).update(
            retry_keys=Func(F("retry_keys"), Value(call_key), function="array_remove"),
            delivered_at=Coalesce("delivered_at", Value(clock.now())),
        )
        # Where a loop's call was allowed, its counters were reset: this is a loop anew.
        return approval if takes_allowed or approval.decision != "allow" else None

    def _find_remembered(self, event: EventRecord, finding: Finding) -> RememberedDecision | None:
        """Return the remembered decision for this agent, tool and detector, if there is one; never for limits."""
        if detector_for(finding.kind).is_run_limit:
            return None
        return RememberedDecision.objects.filter(
            project_id=self.session.project_id,
            agent=event.agent,
            tool=event.tool,
            kind=finding.kind,
            expires_at__gt=clock.now(),
        ).first()

    def apply_remembered(self, state: State) -> list[Approval]:
        """Close the new approvals that a remembered decision is for, and return them.

        To be called after the last call of a request: the decision is for all calls of it that wait.
        """
        for approval, remembered in self._remembered:
            outcome = person_outcome(
                approval, remembered.choice, remembered.raise_by, remembered.created_by, "remembered",
                templates=self.templates,
            )  # fmt: skip
            self.close(approval, outcome, state)
            RememberedDecision.objects.filter(project_id=approval.project_id, pk=remembered.pk).update(
                times_used=F("times_used") + 1
            )
        return [approval for approval, _ in self._remembered]

    @property
    def templates(self) -> Mapping[str, str]:
        """The project's own message templates by name, for all wire shapes."""
        return message_templates.templates_of(self.session.project).by_rung

    def close(self, approval: Approval, outcome: ApprovalOutcome, state: State | None) -> None:
        """Close an approval and apply its outcome to the session; see `apply_outcome` for `state`."""
        if state is not None and outcome.decision == "allow":
            silence.observe_release(state, clock.now().timestamp())
        apply_outcome(approval, outcome, self.session, state)
        approval.state, approval.choice, approval.raise_by = outcome.state, outcome.choice, outcome.raise_by
        approval.decision, approval.message = outcome.decision, outcome.message[:2000]
        approval.reason = outcome.reason
        approval.decided_by, approval.decided_at = outcome.by[:150], clock.now()
        note_verdict(
            self.session, outcome.decision, is_guarded=True, call_number=self.session.call_count,
            at=approval.decided_at, by=approval.kind, reason=outcome.message,
        )  # fmt: skip
        self.open.pop(approval.calls_digest, None)
        self._note_change(approval)
        if outcome.decision == "allow":
            self.session.blocked_count = max(0, self.session.blocked_count - approval.held_calls)
            if self.session.meter_kind == approval.kind and not detector_for(approval.kind).is_run_limit:
                self.session.meter_count = 0  # the loop is counted again from the next call
        self._incidents.close_approval(approval)
        done = DONE[outcome.choice].format(by=outcome.raise_by) if outcome.choice else ""
        note = f"{done or outcome.message} ({outcome.reason})" if outcome.reason != "decided" else done
        self._activity.append((approval, outcome.by, f"approval_{outcome.state}", note))

    def reopen(self, approval: Approval, state: State) -> None:
        """Let a decided approval wait again, that was skipped or allowed once and has not reached its agent.

        Its calls are held again. What the decision reset stays reset.
        """
        if approval.decision == "allow":
            self.session.blocked_count += approval.held_calls
            seqs = self._forget_allowed_calls(approval)
            interventions.hold_again(
                state, seqs, approval.kind, approval.count, approval.limit, approval.calls_digest
            )
        self._incidents.reopen_approval(approval)
        approval.state, approval.choice, approval.raise_by = ApprovalState.OPEN, "", 0
        approval.decision, approval.message, approval.reason, approval.answered_in = "", "", "", ""
        by, approval.decided_by, approval.decided_at = approval.decided_by, "", None
        self.open[approval.calls_digest] = approval
        self._reopened.append(approval)
        self._note_change(approval)
        self._activity.append((approval, by, "approval_reopened", "undid the answer"))

    def _forget_allowed_calls(self, approval: Approval) -> list[int]:
        """Let the calls of an approval count as blocked again, and return their numbers."""
        held = Event.objects.filter(
            project_id=approval.project_id,
            session_id=approval.session_id,
            seq__gte=approval.seq,
            decision="hold",
            verdict__approval=approval.public_id,
        )
        seqs = [*held.values_list("seq", flat=True)]
        AllowedCall.objects.filter(
            project_id=approval.project_id, session_id=approval.session_id, seq__in=seqs
        ).delete()
        return seqs

    def _note_change(self, approval: Approval) -> None:
        """Write a change of a stored approval; a new one is written as it is in the end."""
        if all(approval is not new for new in self._new):
            self._changed[approval.public_id] = approval

    def expire_overdue(self, state: State | None) -> None:
        """Close approvals past their deadline with the unattended reaction."""
        now, before = clock.now(), self.session.policy_values
        for approval in [one for one in self.open.values() if one.is_overdue(now)]:
            self.close(approval, unattended_outcome(approval, self.templates), state)
        if self.session.policy_values != before:
            audit.record(
                SYSTEM, "session.policy", self.session.external_id, project_id=self.session.project_id,
                before=before, after=self.session.policy_values,
            )  # fmt: skip

    def withdraw(self, reason: str, decision: str, message: str, by: str) -> None:
        """Close all approvals because they are no longer needed."""
        for approval in [*self.open.values()]:
            outcome = ApprovalOutcome(decision, message, reason, by, state=ApprovalState.WITHDRAWN)
            self.close(approval, outcome, None)

    def save(self) -> None:
        """Write the approvals, their activity, alert events and hints; the incidents must be stored already."""
        if not self._new and not self._changed:
            return
        # A loop has one open approval at most: withdrawn ones are written before new ones.
        for approval in self._changed.values():
            approval.save()
        for approval in self._new:
            approval.save(force_insert=True)
        self._note_allowed_calls()
        IncidentActivity.objects.bulk_create(
            IncidentActivity(
                project_id=self.session.project_id,
                incident_id=approval.incident_id,
                actor=actor[:150],
                action=action,
                note=note[:1000],
            )
            for approval, actor, action, note in self._activity
            if approval.incident_id
        )
        self._record_alert_events()
        for approval in [*self._new, *self._changed.values()]:
            change = "requested" if approval.is_open else approval.state
            publish_after_commit(approval.project_id, Hint("approval", approval.public_id, change))
            if not approval.is_open:
                publish_decision_after_commit(approval.public_id)

    def _note_allowed_calls(self) -> None:
        """Let the calls that were held and are allowed now no longer count as blocked; they were stored before."""
        allowed = [one for one in self._changed.values() if one.decision == "allow"]
        if allowed:
            first, ids = min(one.seq for one in allowed), [one.public_id for one in allowed]
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO detection_allowedcall (project_id, session_id, seq)"
                    " SELECT project_id, session_id, seq FROM detection_event"
                    " WHERE project_id = %s AND session_id = %s AND seq >= %s"
                    " AND decision = 'hold' AND verdict->>'approval' = ANY(%s)"
                    " ON CONFLICT DO NOTHING",
                    [*self.session.key, first, ids],
                )

    def _is_requested(self, approval: Approval) -> bool:
        """Whether it waits newly or again; an open one may only have got a further call."""
        return any(approval is one for one in (*self._new, *self._reopened))

    def _record_alert_events(self) -> None:
        """Record requests to people and their ends; an approval that is closed at once has no event."""
        for approval in [*self._new, *self._changed.values()]:
            if approval.is_open and approval.decider == Decider.PERSON and self._is_requested(approval):
                outbox.record_request(
                    approval, self.session, self._incidents.take_alert_event(approval.incident)
                )
        for approval in self._changed.values():
            if not approval.is_open and approval.decider == Decider.PERSON:
                outbox.record_end(approval, self.session)


def choose_decider(rung: str | None, session: Session, finding: Finding, policy: Policy) -> str:
    """Return who decides a held call: one of `Decider`, or empty if nobody can and the call is stopped.

    If the judge is not configured, was consulted recently or must not overrule this finding, a person decides if
    one attends the session.
    """
    if rung != "judge":
        return Decider.PERSON
    if not judge.obstacle(session, finding, policy):
        return Decider.JUDGE
    return Decider.PERSON if policy.values["attended"] else ""
