"""Decisions of people on groups of held calls: one answer for all that wait when it is given, and its undo.

Each approval is decided under the lock of its session, in a transaction of its own, so that no agent waits for the
others.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from detection import clock
from detection.models import Approval, ApprovalState, Choice, Event
from detection.models.events import EventType
from detection.models.public_ids import new_id
from detection.selectors import held_groups
from detection.selectors.approval_group import in_group
from detection.services import audit
from detection.services.approvals import decisions
from detection.services.audit import Actor
from detection.services.errors import Conflict, NotFound
from detection.services.sessions import containment

MAX_DECIDED: Final = 1000
"""Held calls that one answer decides, those with the first deadlines; as of sessions that are stopped at once."""
UNDO_WITHIN: Final = timedelta(minutes=10)
"""As of other changes of people."""
UNDOABLE: Final = (Choice.SKIP, Choice.ALLOW_ONCE)
"""Choices that change nothing but the held calls; others change settings or stop sessions, which is undone there."""


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """What became of an answer for a group.

    Attributes
    ----------
    id
        Of the answer, for its undo.
    decided
        Approvals that it decided.
    already_decided, expired, withdrawn
        Those that were closed otherwise between its start and their turn.
    left
        Those that wait on because there were more than `MAX_DECIDED`.
    undo_until
        Until when decisions that no agent has received can be undone; None for a choice that cannot.
    """

    id: str
    group: str
    choice: str
    raise_by: int
    decided: int
    already_decided: int
    expired: int
    withdrawn: int
    left: int
    undo_until: datetime | None


@dataclass(frozen=True, slots=True)
class UndoneAnswer:
    """What became of the undo of an answer.

    Attributes
    ----------
    reopened
        Approvals that wait again, with the deadline that they had.
    handed_out
        Decisions that stay: the agent has received them, or has gone on.
    changed
        Decisions that stay because the deadline has passed, the session has ended or was stopped, or its loop waits
        for another decision.
    """

    id: str
    reopened: int
    handed_out: int
    changed: int


def decide(
    project_id: int, group: str, choice: str, actor: Actor, *, raise_by: int = 0, remember: bool = False
) -> GroupDecision:
    """Decide all approvals of a group that wait for a person now, each once; those that come later wait.

    Parameters
    ----------
    group
        As in `HeldGroup`.
    choice, raise_by, remember
        As of `decisions.decide`, for each of them. With `remember`, it is remembered for each agent, tool and detector.

    Returns
    -------
    GroupDecision
        At least one was decided.

    Raises
    ------
    Invalid
        As of `decisions.decide`; nothing was decided.
    NotFound
        If no call of the group was ever held.
    Conflict
        ``already_decided``, if none waits or another person was faster for all of them.
    """
    raise_by = decisions.check_choice(choice, raise_by, remember=remember)
    of_group = in_group(group)
    rows = held_groups.waiting((project_id,)).filter(of_group).order_by("deadline", "pk")
    matching, count = [*rows[:MAX_DECIDED]], rows.count()
    for approval in matching:
        decisions.check_choice_for(approval, choice, remember=remember)
    answer, outcome = new_id("ans_"), Counter[str]()
    remembered: set[tuple[str, str, str]] = set()
    try:
        for approval in matching:
            about = (approval.agent, approval.tool, approval.kind)
            state = _decide_one(
                approval, answer, choice, raise_by, actor, remember=remember and about not in remembered
            )
            outcome[state] += 1
            if state == _DONE:
                remembered.add(about)
    finally:
        if outcome[_DONE]:
            with transaction.atomic():
                audit.record(
                    actor, "approval.decide_group", answer, project_id=project_id,
                    after={
                        "group": group, "choice": choice, "raise_by": raise_by,
                        "count": outcome[_DONE], "tool": matching[0].tool,
                    },
                )  # fmt: skip
    if not outcome[_DONE]:
        raise _nothing_waits(project_id, group)
    return GroupDecision(
        answer, group, choice, raise_by,
        decided=outcome[_DONE],
        already_decided=outcome[ApprovalState.DECIDED],
        expired=outcome[ApprovalState.EXPIRED],
        withdrawn=outcome[ApprovalState.WITHDRAWN],
        left=max(0, count - len(matching)),
        undo_until=clock.now() + UNDO_WITHIN if choice in UNDOABLE else None,
    )  # fmt: skip


_DONE: Final = "done"


def _decide_one(
    approval: Approval, answer: str, choice: str, raise_by: int, actor: Actor, *, remember: bool
) -> str:
    """Decide an approval, and return `_DONE`, or the state that it has got otherwise."""
    with suppress(NotFound), decisions.locked_for_decision(approval.session_key, actor) as locked:
        containment.settle(locked)
        current = locked.approvals.open.get(approval.calls_digest)
        if current is not None and current.pk == approval.pk:
            current.answered_in = answer
            decisions.close_locked(locked, current, choice, raise_by, actor)
            if remember:
                decisions.remember_decision(current, actor)
            return _DONE
    closed = Approval.objects.filter(project_id=approval.project_id, pk=approval.pk)
    return closed.values_list("state", flat=True).first() or ApprovalState.WITHDRAWN  # erased meanwhile


def _nothing_waits(project_id: int, group: str) -> Exception:
    rows = Approval.objects.filter(in_group(group), project_id=project_id)
    last = rows.exclude(state=ApprovalState.OPEN).order_by("-decided_at", "-pk").first()
    if last is None:
        return NotFound()
    if last.state == ApprovalState.DECIDED:
        return Conflict(
            f"None waits any more: {last.decided_by} has already decided.", code="already_decided"
        )
    return Conflict("None waits any more.", code="already_decided")


def undo(project_id: int, answer: str, actor: Actor) -> UndoneAnswer:
    """Let the calls of an answer wait again whose agent has not received the decision.

    A call that was allowed counts as held again. The count of its loop starts anew all the same, and a remembered
    decision stays.

    Raises
    ------
    NotFound
        If the project has no answer of this id.
    Conflict
        ``nothing_to_undo``: it is another person's, older than ten minutes, cannot be undone, or no decision of it can.
    """
    rows = Approval.objects.filter(project_id=project_id, answered_in=answer)
    found = [*rows.order_by("pk")[:MAX_DECIDED]] if answer else []
    if not found:
        raise NotFound
    first = found[0]
    decided_at = first.decided_at or clock.now()
    if first.decided_by != actor.name or clock.now() - decided_at > UNDO_WITHIN:
        raise Conflict(
            "You have no answer to undo. Answers can be undone within 10 min.", code="nothing_to_undo"
        )
    if first.choice and first.choice not in UNDOABLE:
        raise Conflict(
            "This answer changed the session itself: undo it on the page of the session.",
            code="nothing_to_undo",
        )
    outcome = Counter[str]()
    try:
        for approval in found:
            outcome[_reopen(approval, answer)] += 1
    finally:
        if outcome[_REOPENED]:
            with transaction.atomic():
                audit.record(
                    actor, "approval.undo_group", answer, project_id=project_id,
                    before={"choice": first.choice, "count": len(found)}, after={"count": outcome[_REOPENED]},
                )  # fmt: skip
    undone = UndoneAnswer(answer, outcome[_REOPENED], outcome[_HANDED_OUT], outcome[_CHANGED])
    if not undone.reopened:
        raise Conflict(undone_words(undone), code="nothing_to_undo")
    return undone


_REOPENED: Final = "reopened"
_HANDED_OUT: Final = "handed_out"
_CHANGED: Final = "changed"


def _reopen(approval: Approval, answer: str) -> str:
    with suppress(NotFound), decisions.locked_for_decision(approval.session_key) as locked:
        rows = Approval.objects.filter(project_id=approval.project_id, pk=approval.pk, answered_in=answer)
        current = rows.select_related("session", "incident").first()
        if current is None or current.state != ApprovalState.DECIDED:
            return _CHANGED
        if current.delivered_at is not None or _has_gone_on(current):
            return _HANDED_OUT
        session = locked.session
        is_over = session.stopped_by_kind or session.ended_at is not None or current.deadline <= clock.now()
        if is_over or current.calls_digest in locked.approvals.open:
            return _CHANGED
        locked.approvals.reopen(current, locked.tracker)
        containment.settle(locked)
        return _REOPENED
    return _CHANGED


def _has_gone_on(approval: Approval) -> bool:
    """Whether the session has made a call since the decision, which a call that was sent again may be."""
    since = Event.objects.filter(
        project_id=approval.project_id,
        session_id=approval.session_id,
        type=EventType.CALL,
        seq__gt=approval.seq,
        received_at__gt=approval.decided_at,
    )
    return since.exists()


def undone_words(undone: UndoneAnswer) -> str:
    """Return what became of an undo, in one or two sentences."""
    parts = []
    if undone.reopened:
        parts.append(f"{_calls(undone.reopened)} wait{'s' if undone.reopened == 1 else ''} again.")
    if undone.handed_out:
        is_one = undone.handed_out == 1
        stay = "stays answered: it has" if is_one else "stay answered: they have"
        parts.append(f"{_calls(undone.handed_out)} {stay} reached the agent.")
    if undone.changed:
        parts.append(f"{_calls(undone.changed)} no longer wait{'s' if undone.changed == 1 else ''}.")
    return " ".join(parts)


def _calls(count: int) -> str:
    return f"{count:,} call{'s' if count != 1 else ''}"
