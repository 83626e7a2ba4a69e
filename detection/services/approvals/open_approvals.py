"""Holds calls until somebody answers: makes approvals while a session is folded, and closes them.

Everything here runs under the session's row lock, in the caller's transaction, on the session's state in memory. What
people and the judge do from outside is in `approvals`; what a loop is, in `findings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from detection import jobs
from detection.engine import fold, messages
from detection.engine.calls import Finding
from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.models import (
    AlertEventType,
    Approval,
    ApprovalState,
    Choice,
    Decider,
    Incident,
    IncidentActivity,
    RememberedChoice,
    Session,
    SessionState,
)
from detection.models.approvals import DONE, new_approval_id
from detection.models.session_state import note_verdict
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.audit import SYSTEM
from detection.services.incidents import tracker
from detection.services.judging import judge
from detection.services.sessions.event_records import EventRecord
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit, publish_decision_after_commit

JUDGE_WAIT_SECONDS = 15.0
"""Time for a worker to take the approval up, and for the judge's own deadline."""
ALLOWING = frozenset((Choice.ALLOW_ONCE, Choice.RAISE, Choice.EXEMPT, Choice.DISABLE))
_UNATTENDED: dict[str, tuple[str, str]] = {
    "block": (Choice.SKIP, "block"),
    "stop": ("", "stop"),
    "allow": (Choice.ALLOW_ONCE, "allow"),
    "disable": (Choice.DISABLE, "allow"),
}
_ADVICE = "Change the inputs, use another tool, or answer with what you know."


@dataclass(frozen=True, slots=True)
class Closing:
    """How an approval is closed.

    Attributes
    ----------
    choice
        One of `Choice`, or empty where nobody chose.
    reason
        Stable code: ``decided``, ``remembered``, ``unanswered``, ``accepted``, ``denied``, ``session_stopped``, ``session_ended``.
    """

    decision: str
    message: str
    reason: str
    by: str
    choice: str = ""
    raised_by: int = 0
    state: str = ApprovalState.DECIDED
    grants_rounds: int = 0


class OpenApprovals:
    """The open approvals of one locked session. One without any costs no query."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._open: dict[str, Approval] | None = None if session.state == SessionState.HELD else {}
        self._new: list[Approval] = []
        self._changed: dict[str, Approval] = {}
        self._activity: list[tuple[Approval, str, str, str]] = []
        self._allowed: list[Approval] = []

    @property
    def open(self) -> dict[str, Approval]:
        """Open approvals by loop."""
        if self._open is None:
            rows = Approval.objects.filter(session=self.session, state=ApprovalState.OPEN)
            self._open = {row.loop_id: row for row in rows}
        return self._open

    @property
    def has_open(self) -> bool:
        """Whether a call of this session is held."""
        return any(approval.is_open for approval in self.open.values())

    @property
    def has_due(self) -> bool:
        """Whether one is open past its deadline."""
        now = timezone.now()
        return any(tells_now(approval, now) for approval in self.open.values())

    def ask(
        self, event: EventRecord, finding: Finding, policy: Policy, incident: Incident | None, *, decider: str
    ) -> Approval:
        """Have a held call wait for an answer; a loop that is asked about already is not asked about twice.

        Parameters
        ----------
        event
            The call, with its verdict on it.
        policy
            As it holds for the call's tool: names the deadline and what happens without an answer.
        decider
            One of `Decider`.
        """
        known = self.open.get(finding.loop_id)
        if known is not None and known.is_open:
            known.held_calls += 1
            known.count = max(known.count, finding.count)
            self._changed[known.public_id] = known
            return known
        is_judge = decider == Decider.JUDGE
        seconds = JUDGE_WAIT_SECONDS if is_judge else policy.values["answer_timeout_seconds"]
        now = timezone.now()
        what = messages.describe(finding)
        approval = Approval(
            public_id=new_approval_id(),
            project_id=self.session.project_id,
            session=self.session,
            incident=incident,
            decider=decider,
            seq=event.seq,
            call_id=event.call_id,
            call_key=event.call_key,
            tool=event.tool,
            agent=event.agent or self.session.agent,
            run=event.run,
            loop_id=finding.loop_id,
            kind=finding.kind,
            count=finding.count,
            limit=finding.limit,
            window_seconds=finding.window_seconds,
            unit=str(finding.detail.get("unit", ""))[:16],
            summary=(what[:1].upper() + what[1:])[:300],
            requested_at=now,
            deadline=now + timedelta(seconds=seconds),
            unattended="stop" if is_judge else policy.values["unattended_reaction"],
        )
        self.open[finding.loop_id] = approval
        self._new.append(approval)
        self._activity.append((approval, SYSTEM.name, "asked", f"{approval.get_decider_display()} was asked"))
        if is_judge:
            jobs.judge_after_commit(approval.public_id)
        return approval

    def lookup(self, **place: str) -> Approval | None:
        """The newest approval of a ``call_key`` or ``public_id``, as this transaction left it."""
        ((name, value),) = place.items()
        for approval in [*reversed(self._new), *self._changed.values(), *self.open.values()]:
            if getattr(approval, name) == value:
                return approval
        return Approval.objects.filter(session=self.session, **place).order_by("-id").first()

    def remembered(self, event: EventRecord, finding: Finding) -> RememberedChoice | None:
        """An answer that somebody wanted remembered for this agent and tool, if it still holds."""
        return RememberedChoice.objects.filter(
            project_id=self.session.project_id,
            agent=event.agent or self.session.agent,
            tool=event.tool,
            kind=finding.kind,
            expires_at__gt=timezone.now(),
        ).first()

    def use_remembered(self, approval: Approval, known: RememberedChoice, state: State) -> None:
        """Close an approval with an answer given earlier."""
        self.close(
            approval,
            person_closing(approval, known.choice, known.raised_by, known.created_by, "remembered"),
            state,
        )
        RememberedChoice.objects.filter(pk=known.pk).update(times_used=F("times_used") + 1)

    def close(self, approval: Approval, closing: Closing, state: State | None) -> None:
        """Decide an approval and carry the decision out on the session's state.

        Parameters
        ----------
        state
            None when it was written by another version and will be rebuilt: what it would remember of this is lost.
        """
        if closing.choice:
            carry_out(approval, closing.choice, closing.raised_by, self.session, state)
        if state is not None and closing.grants_rounds:
            grant(approval, closing.grants_rounds, state)
        approval.state, approval.choice, approval.raised_by = closing.state, closing.choice, closing.raised_by
        approval.decision, approval.message, approval.reason = (
            closing.decision,
            closing.message[:2000],
            closing.reason,
        )
        approval.decided_by, approval.decided_at = closing.by[:150], timezone.now()
        note_verdict(
            self.session, closing.decision, is_guarded=True, call_number=self.session.call_count,
            at=approval.decided_at, by=approval.kind, reason=closing.message,
        )  # fmt: skip
        self.open.pop(approval.loop_id, None)
        if all(approval is not new for new in self._new):
            self._changed[approval.public_id] = approval
        if closing.decision == "allow":
            self.session.blocked_count = max(0, self.session.blocked_count - approval.held_calls)
            self._allowed.append(approval)
        action = {"decided": "decided", "expired": "unanswered", "withdrawn": "withdrawn"}[closing.state]
        done = DONE.get(closing.choice, "").format(by=closing.raised_by)  # type: ignore[call-overload]
        note = f"{done or closing.message} ({closing.reason})" if closing.reason != "decided" else done
        self._activity.append((approval, closing.by, action, note))

    def expire_due(self, state: State | None) -> None:
        """Close what nobody answered in time, as its policy said."""
        now, before = timezone.now(), self.session.policy_values
        for approval in [one for one in self.open.values() if tells_now(one, now)]:
            self.close(approval, unanswered_closing(approval), state)
        if self.session.policy_values != before:
            audit.record(
                SYSTEM, "session.policy", self.session.external_id, project_id=self.session.project_id,
                before=before, after=self.session.policy_values,
            )  # fmt: skip

    def withdraw(self, reason: str, decision: str, message: str, by: str) -> None:
        """Close what nobody needs to answer any more."""
        for approval in [*self.open.values()]:
            closing = Closing(decision, message, reason, by, state=ApprovalState.WITHDRAWN)
            self.close(approval, closing, None)

    def save(self) -> None:
        """Write approvals and what they mean for incidents; the incidents must be stored already."""
        if not self._new and not self._changed:
            return
        for approval in self._new:
            approval.save(force_insert=True)
        for approval in self._changed.values():
            approval.save()
        for approval in self._allowed:
            if approval.incident_id:
                tracker.discount_blocked(approval.incident_id, approval.held_calls)
        IncidentActivity.objects.bulk_create(
            IncidentActivity(
                incident_id=approval.incident_id, actor=actor[:150], action=action, note=note[:1000]
            )
            for approval, actor, action, note in self._activity
            if approval.incident_id
        )
        self._tell()
        for approval in [*self._new, *self._changed.values()]:
            news = "asked" if approval.is_open else approval.state
            publish_after_commit(approval.project_id, Hint("approval", approval.public_id, news))
            if not approval.is_open:
                publish_decision_after_commit(approval.public_id)

    def _tell(self) -> None:
        """Put into the outbox that a person is asked, and how it ended; what was answered in the same breath is no news."""
        for approval in self._new:
            if approval.is_open and approval.decider == Decider.PERSON:
                outbox.record_approval(approval, self.session, AlertEventType.APPROVAL_REQUESTED)
        for approval in self._changed.values():
            if not approval.is_open and approval.decider == Decider.PERSON:
                outbox.record_approval(approval, self.session, AlertEventType.APPROVAL_CLOSED)


def carry_out(approval: Approval, choice: str, by: int, session: Session, state: State | None) -> None:
    """Do to the session what a choice means for its further calls."""
    if choice == Choice.DISABLE:
        session.policy_values = {**session.policy_values, "enabled": False}
    elif choice == Choice.RAISE:
        _raise(approval, by, session, state)
    elif state is None:
        return
    elif choice == Choice.EXEMPT:
        fold.exempt(state, approval.tool)
    else:
        fold.apply_choice(state, approval.loop_id, "skip" if choice == Choice.SKIP else "allow_once")


def _raise(approval: Approval, by: int, session: Session, state: State | None) -> None:
    detector = detector_for(approval.kind)
    setting = detector.raised_setting(approval.unit)
    if detector.is_run_limit and approval.unit not in ("", "rounds"):
        _raise_for_session(session, setting, max(approval.limit, approval.count) + by)
    elif detector.is_run_limit and state is not None:
        fold.grant_rounds(state, by)
    elif state is None or not fold.apply_choice(state, approval.loop_id, "raise", by):
        # The loop was reset when it was detected; only the session's own limit can be raised.
        _raise_for_session(session, setting, approval.limit + by)


def _raise_for_session(session: Session, field: str, value: float) -> None:
    # A detector that is no longer installed has no setting.
    if field in FIELDS:
        session.policy_values = {**session.policy_values, field: min(value, FIELDS[field].maximum)}


def grant(approval: Approval, rounds: int, state: State) -> None:
    """An accepted justification: so many rounds (or calls of the loop) more, and no further."""
    if detector_for(approval.kind).is_run_limit:
        fold.grant_rounds(state, rounds)
    else:
        fold.apply_choice(state, approval.loop_id, "raise", rounds)


def person_closing(approval: Approval, choice: str, by: int, who: str, reason: str = "decided") -> Closing:
    """What a person's choice comes to."""
    if choice in ALLOWING:
        return Closing("allow", f"{who} {DONE[Choice(choice)].format(by=by)}.", reason, who, choice, by)
    message = f"The call was not run: an operator decided to skip it. {approval.summary}. {_ADVICE}"
    return Closing("block", message, reason, who, choice)


def unanswered_closing(approval: Approval) -> Closing:
    """What the policy said should happen without an answer."""
    choice, decision = _UNATTENDED[approval.unattended]
    who = "the judge" if approval.decider == Decider.JUDGE else "anybody"
    message = {
        "block": f"The call was not run: it needed an operator's answer and got none in time. {approval.summary}. {_ADVICE}",
        "stop": f"The run was stopped: it needed an answer of {who} and got none in time. {approval.summary}. "
        "Break the request into smaller steps, or try another approach.",
        "allow": "Nobody answered in time, and the call is allowed, as the settings say.",
    }[decision]
    return Closing(decision, message, "unanswered", SYSTEM.name, choice, state=ApprovalState.EXPIRED)


def decider_of(rung: str | None, session: Session, finding: Finding, policy: Policy) -> str:
    """Tell who is to answer a held call: a person, the judge, or (empty) nobody, and the call is stopped.

    A judge that is not there, not to be asked again, or not entitled to overrule this finding is replaced by a person
    where someone attends.
    """
    if rung != "judge":
        return Decider.PERSON
    if not judge.refusal(session, finding, policy):
        return Decider.JUDGE
    return Decider.PERSON if policy.values["attended"] else ""


def as_wire(approval: Approval) -> dict[str, Any]:
    """Return what a held verdict tells of its approval."""
    return {
        "id": approval.public_id,
        "deadline": approval.deadline.isoformat(),
        "wait_url": f"{settings.LIVE_URL}/api/v1/approvals/{approval.public_id}?wait=30",
    }


def tells_now(approval: Approval, now: datetime) -> bool:
    """Whether an approval is to be closed because its time is over."""
    return approval.is_open and approval.deadline <= now
