"""Decisions of people on approvals, each under the session's lock, so that the first one wins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction

from detection import clock
from detection.engine.detectors import detector_for
from detection.models import Approval, ApprovalState, Choice, RememberedDecision, SessionKey
from detection.models.approvals import CONTAINMENT
from detection.models.session_state import HELD_DOWN, note_refused
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound, found
from detection.services.sessions import containment
from detection.services.sessions.actions import stop_locked
from detection.services.sessions.locked_session import LockedSession, locked_session
from detection.services.tracking.outcomes import person_outcome
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

log = structlog.get_logger(__name__)
MAX_RAISE = 10_000
MAX_OVERDUE = 500
REMEMBERED_FOR = timedelta(days=90)
"""Lifetime of a remembered decision."""
CHOICES_OF_CONTAINED = (Choice.SKIP, Choice.ALLOW_ONCE, Choice.STOP)
"""What can be decided about a call that a containment holds; there is no loop and no limit."""
_CLOSED = {
    ApprovalState.EXPIRED: ("approval_expired", "The approval has expired: {message}"),
    ApprovalState.WITHDRAWN: ("approval_withdrawn", "The approval is no longer needed: {message}"),
}


def find(project_id: int, public_id: str) -> Approval:
    """Return an approval of a project; one past its deadline is closed first."""
    approval = _read(project_id, public_id)
    if approval.is_overdue(clock.now()):
        _close_overdue_in(approval.session_key)
        approval.refresh_from_db()
    return approval


def _read(project_id: int, public_id: str) -> Approval:
    rows = Approval.objects.select_related("session", "incident")
    return found(rows.filter(project_id=project_id, public_id=public_id).first())


def decide(
    project_id: int, public_id: str, choice: str, actor: Actor, *, raise_by: int = 0, remember: bool = False
) -> Approval:
    """Decide an approval.

    Parameters
    ----------
    choice
        One of `Choice`. ``stop`` stops the session, as `actions.stop` does.
    raise_by
        For the choice ``raise``: by how much, 1 to 10,000 calls or units of a budget.
    remember
        Whether to decide later approvals of the same agent, tool and detector alike, for 90 days. Not allowed for
        limits: a raise that repeats automatically would remove the limit. Not a stop either: it is about one session.

    Returns
    -------
    Approval
        Closed. Repeating a decision as the same person changes nothing.

    Raises
    ------
    Invalid
        ``unknown_choice``, ``invalid_raise``, ``limit_not_remembered``, ``stop_not_remembered`` or ``contained``.
    Conflict
        ``already_decided`` by another person or with another choice, ``approval_expired`` or ``approval_withdrawn``.
    """
    raise_by = check_choice(choice, raise_by, remember=remember)
    approval = find(project_id, public_id)
    check_choice_for(approval, choice, remember=remember)
    with locked_for_decision(approval.session_key, actor) as locked:
        # Read again under the lock: another person may have decided meanwhile.
        containment.settle(locked)
        current = locked.approvals.open.get(approval.calls_digest)
        if current is not None and current.public_id == public_id:
            approval = current
            close_locked(locked, approval, choice, raise_by, actor)
            audit.record(
                actor, "approval.decide", public_id, project_id=project_id,
                after={
                    "choice": choice, "raise_by": raise_by,
                    "session": locked.session.external_id, "tool": approval.tool,
                },
            )  # fmt: skip
            if remember:
                remember_decision(approval, actor)
            return approval
    return _closed_already(
        Approval.objects.select_related("session").get(project_id=project_id, pk=approval.pk),
        choice,
        raise_by,
        actor,
    )


def check_choice(choice: str, raise_by: int, *, remember: bool) -> int:
    """Check what is the same for every approval, and return by how much the choice raises the limit.

    Raises
    ------
    Invalid
        ``unknown_choice``, ``invalid_raise`` or ``stop_not_remembered``.
    """
    if choice not in Choice.values:
        raise Invalid(
            f"`choice` must be one of {', '.join(Choice.values)}.", field="choice", code="unknown_choice"
        )
    if choice == Choice.RAISE and not 1 <= raise_by <= MAX_RAISE:
        raise Invalid(
            f"`raise_by` must be between 1 and {MAX_RAISE:,}.", field="raise_by", code="invalid_raise"
        )
    if remember and choice == Choice.STOP:
        raise Invalid(
            "`remember` must be false: stopping a session is not remembered.",
            field="remember",
            code="stop_not_remembered",
        )
    return raise_by if choice == Choice.RAISE else 0


def check_choice_for(approval: Approval, choice: str, *, remember: bool) -> None:
    """Check that an approval can be decided like this.

    Raises
    ------
    Invalid
        ``contained`` or ``limit_not_remembered``.
    """
    if approval.kind == CONTAINMENT and (remember or choice not in CHOICES_OF_CONTAINED):
        raise Invalid(
            "A containment holds this call. Skip it, allow it once, stop the session, or lift the containment.",
            field="remember" if choice in CHOICES_OF_CONTAINED else "choice",
            code="contained",
        )
    if remember and detector_for(approval.kind).is_run_limit:
        raise Invalid(
            "`remember` must be false: decisions about limits are not remembered.",
            field="remember",
            code="limit_not_remembered",
        )


def close_locked(locked: LockedSession, approval: Approval, choice: str, raise_by: int, actor: Actor) -> None:
    """Apply a checked choice to an open approval of a locked session."""
    if choice == Choice.STOP:
        stop_locked(locked, actor, answered=approval)
        return
    outcome = person_outcome(approval, choice, raise_by, actor.name, templates=locked.approvals.templates)
    locked.approvals.close(approval, outcome, locked.tracker)


def hand_out(project_id: int, public_id: str) -> Approval:
    """Return an approval for the agent that waits for it; a decision that it receives can no longer be undone.

    The same call is a new one then.
    """
    approval = find(project_id, public_id)
    if approval.is_open or approval.delivered_at is not None:
        return approval
    with suppress(NotFound), locked_session(approval.session_key) as locked:
        # Read again under the lock: the decision may have been undone, or handed out, meanwhile.
        approval = _read(project_id, public_id)
        if approval.state != ApprovalState.OPEN and approval.delivered_at is None:
            approval.retry_keys, approval.delivered_at = [], clock.now()
            approval.save(update_fields=["retry_keys", "delivered_at"])
            if approval.decision == "stop" and locked.session.stopped_by_kind in HELD_DOWN:
                note_refused(locked.session)
                locked.incidents.stop(clock.now())
    return approval


def _closed_already(approval: Approval, choice: str, raise_by: int, actor: Actor) -> Approval:
    if approval.state == ApprovalState.DECIDED:
        if (approval.choice, approval.raise_by, approval.decided_by) == (choice, raise_by, actor.name):
            return approval
        decision = approval.get_choice_display() or approval.decision
        raise Conflict(
            f"{approval.decided_by} has already decided: {decision[:1].lower()}{decision[1:]}.",
            code="already_decided",
        )
    code, text = _CLOSED[ApprovalState(approval.state)]
    raise Conflict(text.format(message=approval.message), code=code)


@contextmanager
def locked_for_decision(key: SessionKey, actor: Actor = audit.SYSTEM) -> Iterator[LockedSession]:
    """Lock a session to change its approvals; records changes of its overrides in the audit log."""
    with locked_session(key) as locked:
        session = locked.session
        before = dict(session.policy_values)
        yield locked
        if session.policy_values != before:
            audit.record(
                actor, "session.policy", session.external_id, project_id=session.project_id,
                before=before, after=session.policy_values,
            )  # fmt: skip


def _close_overdue_in(key: SessionKey) -> None:
    with locked_session(key):
        pass  # locking a session closes its overdue approvals


def close_overdue() -> int:
    """Close all approvals past their deadline.

    Returns
    -------
    int
        Number of sessions that had one.
    """
    overdue = Approval.objects.filter(state=ApprovalState.OPEN, deadline__lte=clock.now())
    sessions = [
        *dict.fromkeys(overdue.order_by("deadline").values_list("project_id", "session_id")[:MAX_OVERDUE])
    ]
    for key in map(SessionKey._make, sessions):
        try:
            _close_overdue_in(key)
        except Exception:  # it stays the first that is overdue; the others must not wait for it
            log.exception("approval_not_closed", session_id=key.session_id)
    return len(sessions)


def remember_decision(approval: Approval, actor: Actor) -> None:
    """Let the decision of an approval apply to later ones of the same agent, tool and detector."""
    values: dict[str, Any] = {
        "choice": approval.choice,
        "raise_by": approval.raise_by,
        "created_by": actor.name[:150],
        "created_by_user_id": actor.user_id,
        "created_at": clock.now(),
        "expires_at": clock.now() + REMEMBERED_FOR,
        "times_used": 0,
    }
    key: dict[str, Any] = {"agent": approval.agent, "tool": approval.tool, "kind": approval.kind}
    RememberedDecision.objects.update_or_create(defaults=values, project_id=approval.project_id, **key)
    audit.record(
        actor,
        "approval.remember",
        f"{approval.agent or 'unnamed agent'}: {approval.tool}",
        project_id=approval.project_id,
        after={**key, "choice": approval.choice, "raise_by": approval.raise_by},
    )


@transaction.atomic
def delete_remembered(project_id: int, remembered_id: int, actor: Actor) -> None:
    """Delete a remembered decision; the next such call is held again."""
    row = (
        RememberedDecision.objects.select_for_update().filter(project_id=project_id, pk=remembered_id).first()
    )
    if row is None:
        raise NotFound
    audit.record(
        actor,
        "approval.forget",
        f"{row.agent or 'unnamed agent'}: {row.tool}",
        project_id=project_id,
        before={"agent": row.agent, "tool": row.tool, "kind": row.kind, "choice": row.choice},
    )
    row.delete()
    publish_after_commit(project_id, Hint("approval"))
