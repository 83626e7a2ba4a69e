"""What people and the judge answer, from outside a fold: each under the session's lock, so that one answer wins.

Making questions and what an answer does to a session's state is in `asking`; consulting the judge in `judge`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog
from django.db import DatabaseError, connection, transaction
from django.db.models.expressions import RawSQL
from django.utils import timezone

from detection.engine import snapshot
from detection.engine.memory import State
from detection.models import (
    Choice,
    Incident,
    JudgeCall,
    JudgeOutcome,
    Question,
    QuestionState,
    RememberedChoice,
    Session,
    SessionState,
)
from detection.models.questions import AskedOf
from detection.selectors.policies import tiers_of
from detection.services import audit, judge, tracking
from detection.services.asking import Asking, Closing, person_closing, tells_now
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.locking import lock_session
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

log = structlog.get_logger(__name__)
MAX_RAISE = 10_000
MAX_DUE = 500
REMEMBERED_FOR = timedelta(days=90)
"""Nothing is remembered for ever: after this somebody is asked again."""
TAKEN_UP_WITHIN = timedelta(seconds=3)
"""In this time a task has reached a worker, or it is lost."""
_JUDGE_LOCK = 0x4C47_0004
_REFUSALS = {
    QuestionState.EXPIRED: ("question_expired", "The time for an answer is over: {message}"),
    QuestionState.WITHDRAWN: ("question_withdrawn", "Nobody needs an answer any more: {message}"),
}


def find(project_id: int, public_id: str) -> Question:
    """Return a question as it stands now; one whose time is over is closed first.

    Raises
    ------
    NotFound
        When there is none in this project.
    """
    question = (
        Question.objects.select_related("session", "incident")
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )
    if question is None:
        raise NotFound("There is no such question in this project.")
    if tells_now(question, timezone.now()):
        close_due_of(question.session_id)
        question.refresh_from_db()
    return question


def answer(
    project_id: int, public_id: str, choice: str, actor: Actor, *, by: int = 0, remember: bool = False
) -> Question:
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
    Question
        Closed. Giving the same answer again, as the same person, changes nothing.

    Raises
    ------
    Conflict
        ``already_answered`` (by somebody else, or differently), ``question_expired``, ``question_withdrawn``.
    """
    if choice not in Choice.values:
        raise Invalid(
            f"An answer is one of {', '.join(Choice.values)}.", field="choice", code="unknown_choice"
        )
    if choice == Choice.RAISE and not 1 <= by <= MAX_RAISE:
        raise Invalid(f"A limit is raised by 1 to {MAX_RAISE:,}.", field="by", code="invalid_raise")
    by = by if choice == Choice.RAISE else 0
    question = find(project_id, public_id)
    with _held_session(question.session_id, actor) as (session, state, asking):
        # Only what is read under the lock counts: somebody may have answered since the look above.
        current = asking.open.get(question.loop_id)
        if current is not None and current.public_id == public_id:
            question = current
            asking.close(question, person_closing(question, choice, by, actor.name), state)
            audit.record(
                actor, "question.answer", public_id, project_id=project_id,
                after={"choice": choice, "by": by, "session": session.external_id, "tool": question.tool},
            )  # fmt: skip
            if remember:
                _remember(question, actor)
            return question
    return _refused(Question.objects.select_related("session").get(pk=question.pk), choice, by, actor)


def _refused(question: Question, choice: str, by: int, actor: Actor) -> Question:
    if question.state == QuestionState.ANSWERED:
        if (question.choice, question.raised_by, question.answered_by) == (choice, by, actor.name):
            return question
        what = question.get_choice_display() or question.decision
        raise Conflict(
            f"{question.answered_by} has answered already: {what[:1].lower()}{what[1:]}.",
            code="already_answered",
        )
    code, text = _REFUSALS[QuestionState(question.state)]
    raise Conflict(text.format(message=question.message), code=code)


@contextmanager
def _held_session(
    session_id: int, actor: Actor = audit.SYSTEM
) -> Iterator[tuple[Session, State | None, Asking]]:
    """Lock a session for a change of its questions; afterwards everything that changed is written."""
    with transaction.atomic():
        session = lock_session(session_id)
        if session is None:
            raise NotFound("The session of this question is gone.")
        try:
            state = tracking.read(session.pk)
        except snapshot.SnapshotVersionError:
            state = None  # rebuilt with the next event; what it would have remembered of this answer is lost
        asking = Asking(session, looks=True)
        before = (session.policy_values, session.blocked_count, len(asking.open))
        asking.expire_due(state)
        yield session, state, asking
        if len(asking.open) == before[2]:
            return
        if state is not None:
            tracking.write(session.pk, state)
        asking.save()
        if session.policy_values != before[0]:
            audit.record(
                actor, "session.policy", session.external_id, project_id=session.project_id,
                before=before[0], after=session.policy_values,
            )  # fmt: skip
        session.state = _state_of(session, asking)
        session.changed_xid = RawSQL("pg_current_xact_id()::text::bigint", ())
        session.save(update_fields=("state", "policy_values", "blocked_count", "changed_xid"))
        publish_after_commit(session.project_id, Hint("session", session.external_id))


def _state_of(session: Session, asking: Asking) -> str:
    if session.is_stopped:
        return SessionState.STOPPED
    if session.ended_at is not None:
        return SessionState.ENDED
    if asking.has_open:
        return SessionState.WAITING
    is_looping = Incident.objects.filter(session=session, ended_at=None).exists()
    return SessionState.LOOPING if is_looping else SessionState.RUNNING


def close_due_of(session_id: int) -> None:
    """Close the questions of one session whose time is over."""
    with _held_session(session_id):
        pass


def close_due() -> int:
    """Close every question whose time is over and that nobody has read since; returns how many sessions had one."""
    due = Question.objects.filter(state=QuestionState.OPEN, deadline__lte=timezone.now())
    sessions = [*dict.fromkeys(due.order_by("deadline").values_list("session_id", flat=True)[:MAX_DUE])]
    for session_id in sessions:
        try:
            close_due_of(session_id)
        except (DatabaseError, NotFound):
            log.exception("question_not_closed", session_id=session_id)
    return len(sessions)


def _remember(question: Question, actor: Actor) -> None:
    values: dict[str, Any] = {
        "choice": question.choice,
        "raised_by": question.raised_by,
        "created_by": actor.name[:150],
        "created_by_user_id": actor.user_id,
        "created_at": timezone.now(),
        "expires_at": timezone.now() + REMEMBERED_FOR,
        "times_used": 0,
    }
    place: dict[str, Any] = {"agent": question.agent, "tool": question.tool, "kind": question.kind}
    RememberedChoice.objects.update_or_create(defaults=values, project_id=question.project_id, **place)
    audit.record(
        actor,
        "question.remember",
        f"{question.agent or 'unnamed agent'}: {question.tool}",
        project_id=question.project_id,
        after={**place, "choice": question.choice, "by": question.raised_by},
    )


@transaction.atomic
def forget(project_id: int, remembered_id: int, actor: Actor) -> None:
    """Take a remembered answer back: the next session is asked about again."""
    row = RememberedChoice.objects.select_for_update().filter(project_id=project_id, pk=remembered_id).first()
    if row is None:
        raise NotFound("There is no such remembered answer in this project.")
    audit.record(
        actor,
        "question.forget",
        f"{row.agent or 'unnamed agent'}: {row.tool}",
        project_id=project_id,
        before={"agent": row.agent, "tool": row.tool, "kind": row.kind, "choice": row.choice},
    )
    row.delete()
    publish_after_commit(project_id, Hint("question"))


def ask_judge(public_id: str) -> str:
    """Consult the judge about a question and carry out what it says; blocks for the judge's deadline.

    Returns
    -------
    str
        The outcome, or empty when there was nothing to ask. Asking twice asks once.
    """
    question = (
        Question.objects.select_related("session__project")
        .filter(public_id=public_id, asked_of=AskedOf.JUDGE, state=QuestionState.OPEN)
        .first()
    )
    if question is None:
        return ""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_JUDGE_LOCK, question.pk % 2**31])
        if not cursor.fetchone()[0]:
            return ""
        try:
            if JudgeCall.objects.filter(question=question).exists():
                return ""
            cap = rounds_cap(question)
            call = judge.consult(question, cap)
            _settle(question, call)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_JUDGE_LOCK, question.pk % 2**31])
    log.info("judge_consulted", question=public_id, outcome=call.outcome, error=call.error)
    return call.outcome


def left_lying() -> list[str]:
    """Return the questions, by public id, that the judge should have been asked a while ago; one query, mostly of no rows.

    One that is being asked just now is among them: asking again then finds it taken.
    """
    now = timezone.now()
    waiting = Question.objects.filter(
        state=QuestionState.OPEN, asked_of=AskedOf.JUDGE, deadline__gt=now, judge_calls=None,
        asked_at__lt=now - TAKEN_UP_WITHIN,
    )  # fmt: skip
    return [*waiting.order_by("deadline").values_list("public_id", flat=True)[:MAX_DUE]]


def rounds_cap(question: Question) -> int:
    """How much a yes may grant at most, by the settings that hold for the session now."""
    session = question.session
    tiers = tiers_of(session.project_id, session.project.policy_version)
    policy = tiers.policy_for(session.backend, session.model, session.policy_values).for_tool(question.tool)
    rounds = int(policy.values["budget_extension_rounds"])
    return rounds if question.kind == "budget" else min(rounds, judge.MAX_GRACE_CALLS)


def _settle(question: Question, call: JudgeCall) -> None:
    """Store what the judge said; it decides only if nobody and nothing has decided meanwhile."""
    with _held_session(question.session_id) as (_, state, asking):
        current = asking.open.get(question.loop_id)
        in_time = current is not None and current.public_id == question.public_id
        if not in_time or state is None:
            call.rounds_granted = 0
            call.error = call.error or "too_late"
            if call.outcome == JudgeOutcome.ACCEPTED:
                call.outcome = JudgeOutcome.REFUSED
        call.save()
        if current is not None and in_time:
            asking.close(current, _judged(current, call), state)


def _judged(question: Question, call: JudgeCall) -> Closing:
    """Our own words only: what the judge wrote is shown to people and never handed to a model."""
    if call.outcome == JudgeOutcome.ACCEPTED and call.rounds_granted:
        what = "rounds" if question.kind == "budget" else "calls"
        return Closing(
            "allow", f"The justification was accepted: {call.rounds_granted} more {what}.", "accepted", "judge",
            grants_rounds=call.rounds_granted,
        )  # fmt: skip
    message = (
        f"The run was stopped. {question.summary}, and no justification for going on was accepted. "
        "Break the request into smaller steps, or try another approach."
    )
    return Closing("stop", message, call.outcome, "judge")
