"""What people and the judge answer, from outside a fold: each under the session's lock, so that one answer wins.

Making approvals and what an answer does to a session's state is in `asking`; consulting the judge in `judge`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog
from django.db import DatabaseError, transaction
from django.utils import timezone

from detection.engine.detectors import detector_for
from detection.models import (
    Approval,
    ApprovalState,
    Choice,
    JudgeCall,
    JudgeOutcome,
    RememberedChoice,
)
from detection.models.approvals import Decider
from detection.selectors.policies import effective
from detection.services import audit
from detection.services.approvals.open_approvals import Closing, person_closing, tells_now
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.judging import judge
from detection.services.sessions.locked_session import LockedSession, locked_session
from detection.sql.advisory_locks import AdvisoryLock, try_lock
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

log = structlog.get_logger(__name__)
MAX_RAISE = 10_000
MAX_DUE = 500
REMEMBERED_FOR = timedelta(days=90)
"""Nothing is remembered for ever: after this somebody is asked again."""
TAKEN_UP_WITHIN = timedelta(seconds=3)
"""In this time a task has reached a worker, or it is lost."""
_REFUSALS = {
    ApprovalState.EXPIRED: ("approval_expired", "The time for an answer is over: {message}"),
    ApprovalState.WITHDRAWN: ("approval_withdrawn", "Nobody needs an answer any more: {message}"),
}


def find(project_id: int, public_id: str) -> Approval:
    """Return an approval as it stands now; one whose time is over is closed first.

    Raises
    ------
    NotFound
        When there is none in this project.
    """
    approval = (
        Approval.objects.select_related("session", "incident")
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )
    if approval is None:
        raise NotFound("There is no such approval in this project.")
    if tells_now(approval, timezone.now()):
        close_due_of(approval.session_id)
        approval.refresh_from_db()
    return approval


def decide(
    project_id: int, public_id: str, choice: str, actor: Actor, *, by: int = 0, remember: bool = False
) -> Approval:
    """Give one of the five answers.

    Parameters
    ----------
    choice
        One of `Choice`.
    by
        For ``raise``: by how much, 1 to 10,000 calls (or rounds, tokens … of a budget).
    remember
        Whether later sessions of the same agent and tool are answered alike, for 90 days, without asking.

    Returns
    -------
    Approval
        Closed. Giving the same answer again, as the same person, changes nothing.

    Raises
    ------
    Conflict
        ``already_decided`` (by somebody else, or differently), ``approval_expired``, ``approval_withdrawn``.
    """
    if choice not in Choice.values:
        raise Invalid(
            f"An answer is one of {', '.join(Choice.values)}.", field="choice", code="unknown_choice"
        )
    if choice == Choice.RAISE and not 1 <= by <= MAX_RAISE:
        raise Invalid(f"A limit is raised by 1 to {MAX_RAISE:,}.", field="by", code="invalid_raise")
    by = by if choice == Choice.RAISE else 0
    approval = find(project_id, public_id)
    with _locked(approval.session_id, actor) as locked:
        # Only what is read under the lock counts: somebody may have answered since the look above.
        current = locked.approvals.open.get(approval.loop_id)
        if current is not None and current.public_id == public_id:
            approval = current
            locked.approvals.close(approval, person_closing(approval, choice, by, actor.name), locked.tracker)
            audit.record(
                actor, "approval.decide", public_id, project_id=project_id,
                after={"choice": choice, "by": by, "session": locked.session.external_id, "tool": approval.tool},
            )  # fmt: skip
            if remember:
                _remember(approval, actor)
            return approval
    return _refused(Approval.objects.select_related("session").get(pk=approval.pk), choice, by, actor)


def _refused(approval: Approval, choice: str, by: int, actor: Actor) -> Approval:
    if approval.state == ApprovalState.DECIDED:
        if (approval.choice, approval.raised_by, approval.decided_by) == (choice, by, actor.name):
            return approval
        what = approval.get_choice_display() or approval.decision
        raise Conflict(
            f"{approval.decided_by} has answered already: {what[:1].lower()}{what[1:]}.",
            code="already_decided",
        )
    code, text = _REFUSALS[ApprovalState(approval.state)]
    raise Conflict(text.format(message=approval.message), code=code)


@contextmanager
def _locked(session_id: int, actor: Actor = audit.SYSTEM) -> Iterator[LockedSession]:
    """Lock a session for a change of its approvals, and record what that changed of its own settings."""
    with locked_session(session_id) as locked:
        session = locked.session
        before = dict(session.policy_values)
        yield locked
        if session.policy_values != before:
            audit.record(
                actor, "session.policy", session.external_id, project_id=session.project_id,
                before=before, after=session.policy_values,
            )  # fmt: skip


def close_due_of(session_id: int) -> None:
    """Close the approvals of one session whose time is over, as locking it does."""
    with locked_session(session_id):
        pass


def close_due() -> int:
    """Close every approval whose time is over and that nobody has read since; returns how many sessions had one."""
    due = Approval.objects.filter(state=ApprovalState.OPEN, deadline__lte=timezone.now())
    sessions = [*dict.fromkeys(due.order_by("deadline").values_list("session_id", flat=True)[:MAX_DUE])]
    for session_id in sessions:
        try:
            close_due_of(session_id)
        except (DatabaseError, NotFound):
            log.exception("approval_not_closed", session_id=session_id)
    return len(sessions)


def _remember(approval: Approval, actor: Actor) -> None:
    values: dict[str, Any] = {
        "choice": approval.choice,
        "raised_by": approval.raised_by,
        "created_by": actor.name[:150],
        "created_by_user_id": actor.user_id,
        "created_at": timezone.now(),
        "expires_at": timezone.now() + REMEMBERED_FOR,
        "times_used": 0,
    }
    place: dict[str, Any] = {"agent": approval.agent, "tool": approval.tool, "kind": approval.kind}
    RememberedChoice.objects.update_or_create(defaults=values, project_id=approval.project_id, **place)
    audit.record(
        actor,
        "approval.remember",
        f"{approval.agent or 'unnamed agent'}: {approval.tool}",
        project_id=approval.project_id,
        after={**place, "choice": approval.choice, "by": approval.raised_by},
    )


@transaction.atomic
def forget(project_id: int, remembered_id: int, actor: Actor) -> None:
    """Take a remembered answer back: the next session is asked about again."""
    row = RememberedChoice.objects.select_for_update().filter(project_id=project_id, pk=remembered_id).first()
    if row is None:
        raise NotFound("There is no such remembered answer in this project.")
    audit.record(
        actor,
        "approval.forget",
        f"{row.agent or 'unnamed agent'}: {row.tool}",
        project_id=project_id,
        before={"agent": row.agent, "tool": row.tool, "kind": row.kind, "choice": row.choice},
    )
    row.delete()
    publish_after_commit(project_id, Hint("approval"))


def ask_judge(public_id: str) -> str:
    """Consult the judge about an approval and carry out what it says; blocks for the judge's deadline.

    Returns
    -------
    str
        The outcome, or empty when there was nothing to ask. OpenApprovals twice asks once.
    """
    approval = (
        Approval.objects.select_related("session__project")
        .filter(public_id=public_id, decider=Decider.JUDGE, state=ApprovalState.OPEN)
        .first()
    )
    if approval is None:
        return ""
    with try_lock(AdvisoryLock.JUDGE, approval.pk) as is_locked:
        if not is_locked or JudgeCall.objects.filter(approval=approval).exists():
            return ""
        cap = rounds_cap(approval)
        call = judge.consult(approval, cap)
        _settle(approval, call)
    log.info("judge_consulted", approval=public_id, outcome=call.outcome, error=call.error)
    return call.outcome


def unclaimed_approvals() -> list[str]:
    """Return the approvals, by public id, that the judge should have been asked a while ago; one query, mostly of no rows.

    One that is being asked just now is among them: asking again then finds it taken.
    """
    now = timezone.now()
    waiting = Approval.objects.filter(
        state=ApprovalState.OPEN, decider=Decider.JUDGE, deadline__gt=now, judge_calls=None,
        requested_at__lt=now - TAKEN_UP_WITHIN,
    )  # fmt: skip
    return [*waiting.order_by("deadline").values_list("public_id", flat=True)[:MAX_DUE]]


def rounds_cap(approval: Approval) -> int:
    """How much a yes may grant at most, by the settings that hold for the session now."""
    session = approval.session
    policy = effective(session.project, tool=approval.tool, session=session)
    rounds = int(policy.values["budget_extension_rounds"])
    return rounds if detector_for(approval.kind).is_run_limit else min(rounds, judge.MAX_GRACE_CALLS)


def _settle(approval: Approval, call: JudgeCall) -> None:
    """Store what the judge said; it decides only if nobody and nothing has decided meanwhile."""
    with _locked(approval.session_id) as locked:
        current = locked.approvals.open.get(approval.loop_id)
        in_time = current is not None and current.public_id == approval.public_id
        if not in_time:
            call.rounds_granted = 0
            call.error = call.error or "too_late"
            if call.outcome == JudgeOutcome.ACCEPTED:
                call.outcome = JudgeOutcome.SKIPPED
        call.save()
        if current is not None and in_time:
            locked.approvals.close(current, _judged(current, call), locked.tracker)


def _judged(approval: Approval, call: JudgeCall) -> Closing:
    """Our own words only: what the judge wrote is shown to people and never handed to a model."""
    if call.outcome == JudgeOutcome.ACCEPTED and call.rounds_granted:
        what = "rounds" if detector_for(approval.kind).is_run_limit else "calls"
        return Closing(
            "allow", f"The justification was accepted: {call.rounds_granted} more {what}.", "accepted", "judge",
            grants_rounds=call.rounds_granted,
        )  # fmt: skip
    message = (
        f"The run was stopped. {approval.summary}, and no justification for going on was accepted. "
        "Break the request into smaller steps, or try another approach."
    )
    return Closing("stop", message, call.outcome, "judge")
