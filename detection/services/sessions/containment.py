"""What a containment does to one locked session: messages for its calls, and what follows for its row and held calls.

The containment in force decides about a call, and nothing written here. This writes what people see, and withdraws
calls on hold, whose agents wait for a decision.
"""

from __future__ import annotations

from detection import clock
from detection.engine import fold, messages
from detection.engine.policy import Policy
from detection.models import ApprovalState, ContainmentReaction, Session, StoppedByKind
from detection.models.approvals import CONTAINMENT
from detection.models.session_state import begin_stop, clear_stop
from detection.selectors.containments import ContainmentRule
from detection.services import audit
from detection.services.events.event_records import EventRecord
from detection.services.sessions.locked_session import LockedSession
from detection.services.tracking.outcomes import ApprovalOutcome, Templates

WITHDRAWN, LIFTED = "contained", "containment_lifted"
"""Why a containment closed an approval."""


def summary_of(rule: ContainmentRule) -> str:
    """Return who contained what, and why, as a sentence without its mark."""
    by = audit.shown_to_agents(rule.by)
    reason = f" ({rule.reason.rstrip('.')})" if rule.reason else ""
    return f"{by[:1].upper()}{by[1:]} {rule.done} {rule.words} in LoopGuard{reason}"


def message_of(rule: ContainmentRule, tool: str, templates: Templates) -> str:
    """Return the message for the agent of a call that a containment covers."""
    name = "ask" if rule.reaction == ContainmentReaction.HOLD else "contained"
    return messages.closing(
        name, summary_of(rule), kind=CONTAINMENT, tool=tool, count=0, limit=0, templates=templates
    )


def key_of(locked: LockedSession, event: EventRecord, policy: Policy) -> str:
    """Return the key of a call that the engine does not see."""
    return fold.call_key(event, policy, locked.keyer)


def note_stop(session: Session, rule: ContainmentRule) -> None:
    """Record that a containment stops a session, unless it is to be stopped already; changes the row in memory only."""
    if not session.stopped_by_kind:
        begin_stop(session, StoppedByKind.CONTAINMENT, clock.now(), rule.by, rule.reason)


def settle(locked: LockedSession) -> None:
    """Bring the row and the held calls of a session in line with what is in force; running it twice changes nothing.

    Held calls that a stop or block covers are withdrawn. Those that only a lifted containment held may run.
    """
    session, approvals = locked.session, locked.approvals
    rule = locked.contained()
    if rule is not None and rule.reaction == ContainmentReaction.STOP:
        note_stop(session, rule)
    elif session.stopped_by_kind == StoppedByKind.CONTAINMENT and not locked.contained(session.last_tool):
        clear_stop(session)
    for approval in [*approvals.open.values()]:
        covering = locked.contained(approval.tool, agent=approval.agent)
        if covering is not None and covering.reaction != ContainmentReaction.HOLD:
            decision = covering.reaction
            if decision == ContainmentReaction.STOP:
                note_stop(session, covering)
            text = message_of(covering, approval.tool, approvals.templates)
            outcome = ApprovalOutcome(decision, text, WITHDRAWN, covering.by, state=ApprovalState.WITHDRAWN)
        elif approval.kind == CONTAINMENT and (
            covering is None or covering.public_id != approval.calls_digest
        ):
            text = "The call is allowed: the containment was lifted."
            outcome = ApprovalOutcome("allow", text, LIFTED, "system", state=ApprovalState.WITHDRAWN)
        else:
            continue
        approvals.close(approval, outcome, None)
