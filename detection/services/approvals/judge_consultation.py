"""Consults the judge about approvals, outside the session's lock, and applies its ruling under it."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import transaction

from detection import clock
from detection.engine.detectors import detector_for
from detection.engine.policy import Policy
from detection.models import Approval, ApprovalState, JudgeCall, JudgeLabel, JudgeOutcome
from detection.models.approvals import Decider
from detection.selectors.policies import effective
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.judging import judge
from detection.services.sessions.locked_session import locked_session
from detection.services.tracking.outcomes import judge_outcome
from detection.sql.advisory_locks import AdvisoryLock, try_lock

log = structlog.get_logger(__name__)
MAX_UNCLAIMED = 500
TASK_TIMEOUT = timedelta(seconds=3)
"""A task that has not reached a worker after this time was lost."""


def consult_judge(public_id: str, project_id: int) -> str:
    """Consult the judge about an approval and apply its ruling; blocks for at most the judge's deadline.

    Returns
    -------
    str
        The outcome, or empty if there was nothing to decide. Each approval is submitted to the judge once.
    """
    rows = Approval.objects.filter(
        project_id=project_id, public_id=public_id, decider=Decider.JUDGE, state=ApprovalState.OPEN
    )
    approval = rows.select_related("session__project").first()
    if approval is None:
        return ""
    with try_lock(AdvisoryLock.JUDGE, approval.pk) as is_locked:
        if not is_locked or JudgeCall.objects.filter(approval=approval).exists():
            return ""
        policy = _policy_of(approval)
        call = judge.consult(approval, policy, extension_cap_of(policy, approval.kind))
        judge.rest_after(call)
        _apply(approval, call)
    log.info("judge_consulted", approval=public_id, outcome=call.outcome, error=call.error)
    return call.outcome


def unclaimed_approvals() -> list[tuple[int, str]]:
    """Return the projects and public ids of approvals whose judge task was lost.

    One query, mostly without rows. This includes approvals that are being submitted to the judge; consulting it again
    has no effect then.
    """
    now = clock.now()
    unclaimed = Approval.objects.filter(
        state=ApprovalState.OPEN, decider=Decider.JUDGE, deadline__gt=now, judge_calls=None,
        requested_at__lt=now - TASK_TIMEOUT,
    )  # fmt: skip
    return [*unclaimed.order_by("deadline").values_list("project_id", "public_id")[:MAX_UNCLAIMED]]


def _policy_of(approval: Approval) -> Policy:
    return effective(approval.session.project, tool=approval.tool, session=approval.session)


def extension_cap_of(policy: Policy, kind: str) -> int:
    """Return how many rounds, or calls of a loop, an acceptance grants at most under a policy."""
    rounds = int(policy.values["budget_extension_rounds"])
    return rounds if detector_for(kind).is_run_limit else min(rounds, judge.MAX_GRACE_CALLS)


def ruling_on(project_id: int, public_id: str) -> JudgeCall:
    """Return the consultation about an approval.

    Raises
    ------
    NotFound
        If the project has no approval of this id, or the judge was not consulted about it.
    """
    call = (
        JudgeCall.objects.select_related("approval")
        .filter(project_id=project_id, approval__public_id=public_id)
        .first()
    )
    if call is None:
        raise NotFound
    return call


def label_ruling(project_id: int, public_id: str, label: str, actor: Actor) -> JudgeCall:
    """Store a person's label of the ruling on an approval; an empty one removes it.

    Raises
    ------
    Invalid
        For an unknown label.
    NotFound
        As `ruling_on` says.
    Conflict
        `not_consulted` if the judge was not called, so that there is no ruling to label.
    """
    if label not in JudgeLabel.values:
        raise Invalid("`label` must be right, wrong or empty.", field="label", code="unknown_label")
    call = ruling_on(project_id, public_id)
    if not call.was_sent:
        raise Conflict("The judge was not called, so there is no ruling to label.", code="not_consulted")
    before = call.label
    if before == label:
        return call
    call.label = label
    call.labelled_by, call.labelled_at = (actor.name[:150], clock.now()) if label else ("", None)
    with transaction.atomic():
        call.save(update_fields=("label", "labelled_by", "labelled_at"))
        audit.record(
            actor,
            "judge.label",
            public_id,
            project_id=project_id,
            before={"label": before},
            after={"label": label},
        )
    return call


def _apply(approval: Approval, call: JudgeCall) -> None:
    """Store the consultation, and close the approval with it unless it was closed meanwhile."""
    with locked_session(approval.session_key) as locked:
        if call.outcome == JudgeOutcome.OBEYED:
            outbox.record_judge_disabled(locked.session, approval, call)
        current = locked.approvals.open.get(approval.calls_digest)
        if current is None or current.public_id != approval.public_id:
            call.rounds_granted = 0
            call.error = call.error or "too_late"
            if call.outcome == JudgeOutcome.ACCEPTED:
                call.outcome = JudgeOutcome.SKIPPED
            call.save()
            return
        call.save()
        locked.approvals.close(
            current, judge_outcome(current, call, locked.approvals.templates), locked.tracker
        )
