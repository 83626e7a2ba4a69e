"""Outcomes of approvals: the message for the agent, and the changes of the session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from detection.engine import interventions, messages
from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.memory import State
from detection.models import Approval, ApprovalState, Choice, JudgeCall, JudgeOutcome, Session
from detection.models.approvals import DONE, Decider
from detection.services import audit
from detection.services.audit import SYSTEM

Templates = Mapping[str, str]
"""Custom message templates of a project by name, for all wire shapes."""
ALLOWING = frozenset((Choice.ALLOW_ONCE, Choice.RAISE, Choice.EXEMPT, Choice.DISABLE))
_UNATTENDED: dict[str, tuple[str, str]] = {
    "block": (Choice.SKIP, "block"),
    "stop": ("", "stop"),
    "allow": (Choice.ALLOW_ONCE, "allow"),
    "disable": (Choice.DISABLE, "allow"),
}


@dataclass(frozen=True, slots=True)
class ApprovalOutcome:
    """How an approval ends.

    Attributes
    ----------
    decision
        ``allow``, ``block`` or ``stop``.
    message
        For the agent.
    reason
        Stable code: ``decided``, ``remembered``, ``expired``, ``session_stopped``, ``session_ended`` or a judge's
        outcome.
    by
        Name of the person, key, judge or system that decided.
    choice
        One of `Choice`; empty without a choice.
    raise_by
        For the choice ``raise``: by how much.
    granted_rounds
        Rounds, or calls of the loop, that the judge granted.
    """

    decision: str
    message: str
    reason: str
    by: str
    choice: str = ""
    raise_by: int = 0
    state: str = ApprovalState.DECIDED
    granted_rounds: int = 0


def person_outcome(
    approval: Approval,
    choice: str,
    raise_by: int,
    by: str,
    reason: str = "decided",
    *,
    templates: Templates = MappingProxyType({}),
) -> ApprovalOutcome:
    """Return the outcome of a person's choice; `templates` are the project's own by name."""
    if choice in ALLOWING:
        message = f"{audit.shown_to_agents(by)} {DONE[choice].format(by=raise_by)}."
        message = message[:1].upper() + message[1:]
        return ApprovalOutcome("allow", message, reason, by, choice, raise_by)
    return ApprovalOutcome("block", _closing("skipped", approval, templates), reason, by, choice)


def unattended_outcome(approval: Approval, templates: Templates = MappingProxyType({})) -> ApprovalOutcome:
    """Return the outcome of an approval past its deadline: the unattended reaction of its policy."""
    choice, decision = _UNATTENDED[approval.unattended]
    if decision == "allow":
        message = "The call is allowed: nobody decided in time, and the unattended reaction is to allow it."
    else:
        message = _closing("expired" if decision == "block" else "expired_stop", approval, templates)
    return ApprovalOutcome(decision, message, "expired", SYSTEM.name, choice, state=ApprovalState.EXPIRED)


def judge_outcome(
    approval: Approval, call: JudgeCall, templates: Templates = MappingProxyType({})
) -> ApprovalOutcome:
    """Return the outcome of a consultation.

    The agent receives the guidance of an acceptance. Reasons and denials are for people only.
    """
    if call.outcome == JudgeOutcome.ACCEPTED and call.rounds_granted:
        guidance = f" Guidance: {messages.as_sentence(call.guidance)}" if call.guidance else ""
        unit = "rounds" if detector_for(approval.kind).is_run_limit else "calls"
        return ApprovalOutcome(
            "allow",
            f"The justification was accepted: {call.rounds_granted} more {unit}.{guidance}",
            "accepted",
            "judge",
            granted_rounds=call.rounds_granted,
        )
    return ApprovalOutcome("stop", _closing("denied", approval, templates), call.outcome, "judge")


def _closing(name: str, approval: Approval, templates: Templates) -> str:
    return messages.closing(
        name,
        approval.summary,
        kind=approval.kind,
        tool=approval.tool,
        count=approval.count,
        limit=approval.limit,
        decider="the judge" if approval.decider == Decider.JUDGE else "an operator",
        templates=templates,
    )


def apply_outcome(
    approval: Approval, outcome: ApprovalOutcome, session: Session, state: State | None
) -> None:
    """Change the session as an outcome requires for its further calls.

    Parameters
    ----------
    session
        Locked; its overrides may change.
    state
        None if it was written by another version and will be rebuilt; the session then forgets this outcome.
    """
    if state is not None and outcome.decision == "allow":
        interventions.release(state, approval.calls_digest, approval.seq)
    if outcome.choice == Choice.DISABLE:
        session.policy_values = {**session.policy_values, "enabled": False}
    elif outcome.choice == Choice.RAISE:
        _raise_limit(approval, outcome.raise_by, session, state)
    elif state is not None and outcome.choice == Choice.EXEMPT:
        interventions.exempt(state, approval.tool)
    elif state is not None and outcome.choice:
        interventions.apply_choice(
            state, approval.calls_digest, "skip" if outcome.choice == Choice.SKIP else "allow_once"
        )
    if state is not None and outcome.granted_rounds:
        _grant(approval, outcome.granted_rounds, state)
    if state is not None:
        interventions.close_hold(state, approval.calls_digest)


def _raise_limit(approval: Approval, raise_by: int, session: Session, state: State | None) -> None:
    detector = detector_for(approval.kind)
    setting = detector.raised_setting(approval.unit)
    limit = detector.setting_of(approval.limit, approval.unit or "rounds")
    if detector.is_run_limit and approval.unit not in ("", "rounds"):
        _override(session, setting, max(limit, detector.setting_of(approval.count, approval.unit)) + raise_by)
    elif detector.is_run_limit and state is not None:
        interventions.grant_rounds(state, raise_by)
    elif state is None or not interventions.apply_choice(state, approval.calls_digest, "raise", raise_by):
        # The loop was reset when it was detected; only the limit of the session can be raised.
        _override(session, setting, limit + raise_by)


def _override(session: Session, field: str, value: float) -> None:
    # A detector that is no longer installed has no setting.
    if field in FIELDS:
        session.policy_values = {**session.policy_values, field: min(value, FIELDS[field].maximum)}


def _grant(approval: Approval, rounds: int, state: State) -> None:
    if detector_for(approval.kind).is_run_limit:
        interventions.grant_rounds(state, rounds)
    else:
        interventions.apply_choice(state, approval.calls_digest, "raise", rounds)
