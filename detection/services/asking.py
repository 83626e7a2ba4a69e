"""Holds calls until somebody answers: makes questions while a session is folded, and closes them.

Everything here runs under the session's row lock, in the caller's transaction, on the session's state in memory. What
people and the judge do from outside is in `questions`; what a loop is, in `findings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Value
from django.db.models.functions import Greatest
from django.utils import timezone

from detection import jobs
from detection.engine import fold, texts
from detection.engine.calls import Finding
from detection.engine.fields import FIELDS
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.models import (
    AskedOf,
    Choice,
    Incident,
    IncidentActivity,
    Question,
    QuestionState,
    RememberedChoice,
    Session,
    SessionState,
    Transition,
)
from detection.models.questions import DONE, new_question_id
from detection.services import alerts, judge
from detection.services.audit import SYSTEM
from detection.services.eventrows import EventRow
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit, publish_answer_after_commit

JUDGE_WAIT_SECONDS = 15.0
"""Time for a worker to take the question up, and for the judge's own deadline."""
ALLOWING = frozenset((Choice.ALLOW_ONCE, Choice.RAISE, Choice.EXEMPT, Choice.DISABLE))
_UNATTENDED: dict[str, tuple[str, str]] = {
    "block": (Choice.SKIP, "block"),
    "stop": ("", "stop"),
    "allow": (Choice.ALLOW_ONCE, "allow"),
    "disable": (Choice.DISABLE, "allow"),
}
_LIMITS = {
    "repeat": "max_repeats",
    "cycle": "cycle_min_laps",
    "similar": "similar_max_calls",
    "outcome": "outcome_max_results",
    "stagnation": "stagnation_max_calls",
    "budget": "budget_max_rounds",
}
_ADVICE = "Change the inputs, use another tool, or answer with what you know."


@dataclass(frozen=True, slots=True)
class Closing:
    """How a question is closed.

    Attributes
    ----------
    choice
        One of `Choice`, or empty where nobody chose.
    reason
        Stable code: ``answered``, ``remembered``, ``unanswered``, ``accepted``, ``denied``, ``session_stopped``, ``session_ended``.
    """

    decision: str
    message: str
    reason: str
    by: str
    choice: str = ""
    raised_by: int = 0
    state: str = QuestionState.ANSWERED
    grants_rounds: int = 0


class Asking:
    """The open questions of one locked session.

    Parameters
    ----------
    looks
        Whether to look into the table even where the session's state says that nobody waits; otherwise such a session
        costs no query.
    """

    def __init__(self, session: Session, *, looks: bool = False) -> None:
        self.session = session
        self._open: dict[str, Question] | None = (
            None if looks or session.state == SessionState.WAITING else {}
        )
        self._new: list[Question] = []
        self._changed: dict[str, Question] = {}
        self._activity: list[tuple[Question, str, str, str]] = []
        self._allowed: list[Question] = []

    @property
    def open(self) -> dict[str, Question]:
        """Open questions by loop."""
        if self._open is None:
            rows = Question.objects.filter(session=self.session, state=QuestionState.OPEN)
            self._open = {row.loop_id: row for row in rows}
        return self._open

    @property
    def has_open(self) -> bool:
        """Whether a call of this session is held."""
        return any(question.is_open for question in self.open.values())

    def ask(
        self, event: EventRow, finding: Finding, policy: Policy, incident: Incident | None, *, asked_of: str
    ) -> Question:
        """Have a held call wait for an answer; a loop that is asked about already is not asked about twice.

        Parameters
        ----------
        event
            The call, with its verdict on it.
        policy
            As it holds for the call's tool: names the deadline and what happens without an answer.
        asked_of
            One of `AskedOf`.
        """
        known = self.open.get(finding.loop_id)
        if known is not None and known.is_open:
            known.held_calls += 1
            known.count = max(known.count, finding.count)
            self._changed[known.public_id] = known
            return known
        is_judge = asked_of == AskedOf.JUDGE
        seconds = JUDGE_WAIT_SECONDS if is_judge else policy.values["answer_timeout_seconds"]
        now = timezone.now()
        what = texts.describe(finding)
        question = Question(
            public_id=new_question_id(),
            project_id=self.session.project_id,
            session=self.session,
            incident=incident,
            asked_of=asked_of,
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
            asked_at=now,
            deadline=now + timedelta(seconds=seconds),
            unattended="stop" if is_judge else policy.values["unattended_reaction"],
        )
        self.open[finding.loop_id] = question
        self._new.append(question)
        self._activity.append(
            (question, SYSTEM.name, "asked", f"{question.get_asked_of_display()} was asked")
        )
        if is_judge:
            jobs.judge_after_commit(question.public_id)
        return question

    def lookup(self, **place: str) -> Question | None:
        """The newest question of a ``call_key`` or ``public_id``, as this transaction left it."""
        ((name, value),) = place.items()
        for question in [*reversed(self._new), *self._changed.values(), *self.open.values()]:
            if getattr(question, name) == value:
                return question
        return Question.objects.filter(session=self.session, **place).order_by("-id").first()

    def remembered(self, event: EventRow, finding: Finding) -> RememberedChoice | None:
        """An answer that somebody wanted remembered for this agent and tool, if it still holds."""
        return RememberedChoice.objects.filter(
            project_id=self.session.project_id,
            agent=event.agent or self.session.agent,
            tool=event.tool,
            kind=finding.kind,
            expires_at__gt=timezone.now(),
        ).first()

    def use_remembered(self, question: Question, known: RememberedChoice, state: State) -> None:
        """Close a question with an answer given earlier."""
        self.close(
            question,
            person_closing(question, known.choice, known.raised_by, known.created_by, "remembered"),
            state,
        )
        RememberedChoice.objects.filter(pk=known.pk).update(times_used=F("times_used") + 1)

    def close(self, question: Question, closing: Closing, state: State | None) -> None:
        """Decide a question and carry the decision out on the session's state.

        Parameters
        ----------
        state
            None when it was written by another version and will be rebuilt: what it would remember of this is lost.
        """
        if closing.choice:
            carry_out(question, closing.choice, closing.raised_by, self.session, state)
        if state is not None and closing.grants_rounds:
            grant(question, closing.grants_rounds, state)
        question.state, question.choice, question.raised_by = closing.state, closing.choice, closing.raised_by
        question.decision, question.message, question.reason = (
            closing.decision,
            closing.message[:2000],
            closing.reason,
        )
        question.answered_by, question.answered_at = closing.by[:150], timezone.now()
        self.open.pop(question.loop_id, None)
        if all(question is not new for new in self._new):
            self._changed[question.public_id] = question
        if closing.decision == "allow":
            self.session.blocked_count = max(0, self.session.blocked_count - question.held_calls)
            self._allowed.append(question)
        action = {"answered": "answered", "expired": "unanswered", "withdrawn": "withdrawn"}[closing.state]
        done = DONE.get(closing.choice, "").format(by=closing.raised_by)  # type: ignore[call-overload]
        note = f"{done or closing.message} ({closing.reason})" if closing.reason != "answered" else done
        self._activity.append((question, closing.by, action, note))

    def expire_due(self, state: State | None) -> None:
        """Close what nobody answered in time, as its policy said."""
        now = timezone.now()
        for question in [one for one in self.open.values() if one.deadline <= now]:
            self.close(question, unanswered_closing(question), state)

    def withdraw(self, reason: str, decision: str, message: str, by: str) -> None:
        """Close what nobody needs to answer any more."""
        for question in [*self.open.values()]:
            closing = Closing(decision, message, reason, by, state=QuestionState.WITHDRAWN)
            self.close(question, closing, None)

    def save(self) -> None:
        """Write questions and what they mean for incidents; the incidents must be stored already."""
        if not self._new and not self._changed:
            return
        for question in self._new:
            question.save(force_insert=True)
        for question in self._changed.values():
            question.save()
        for question in self._allowed:
            if question.incident_id:
                Incident.objects.filter(pk=question.incident_id).update(
                    calls_blocked=Greatest(F("calls_blocked") - question.held_calls, Value(0))
                )
        IncidentActivity.objects.bulk_create(
            IncidentActivity(
                incident_id=question.incident_id, actor=actor[:150], action=action, note=note[:1000]
            )
            for question, actor, action, note in self._activity
            if question.incident_id
        )
        self._tell()
        for question in [*self._new, *self._changed.values()]:
            news = "asked" if question.is_open else question.state
            publish_after_commit(question.project_id, Hint("question", question.public_id, news))
            if not question.is_open:
                publish_answer_after_commit(question.public_id)

    def _tell(self) -> None:
        """Put into the outbox that a person is asked, and how it ended; what was answered in the same breath is no news."""
        for question in self._new:
            if question.is_open and question.asked_of == AskedOf.PERSON:
                alerts.note_question(question, self.session, Transition.ASKED)
        for question in self._changed.values():
            if not question.is_open and question.asked_of == AskedOf.PERSON:
                alerts.note_question(question, self.session, Transition.CLOSED)


def carry_out(question: Question, choice: str, by: int, session: Session, state: State | None) -> None:
    """Do to the session what a choice means for its further calls."""
    if choice == Choice.DISABLE:
        session.policy_values = {**session.policy_values, "enabled": False}
    elif choice == Choice.RAISE:
        _raise(question, by, session, state)
    elif state is None:
        return
    elif choice == Choice.EXEMPT:
        fold.exempt(state, question.tool)
    else:
        fold.rearm(state, question.loop_id, "skip" if choice == Choice.SKIP else "allow_once")


def _raise(question: Question, by: int, session: Session, state: State | None) -> None:
    if question.kind == "budget" and question.unit not in ("", "rounds"):
        unit = "cost_usd" if question.unit == "US dollars" else question.unit
        _raise_for_session(session, f"budget_max_{unit}", max(question.limit, question.count) + by)
    elif question.kind == "budget" and state is not None:
        fold.grant_rounds(state, by)
    elif state is None or not fold.rearm(state, question.loop_id, "raise", by):
        # Where the loop is forgotten once it was found there is nothing to raise but the session's own limit.
        _raise_for_session(session, _LIMITS[question.kind], question.limit + by)


def _raise_for_session(session: Session, field: str, value: float) -> None:
    maximum = FIELDS[field].maximum
    session.policy_values = {
        **session.policy_values,
        field: value if maximum is None else min(value, int(maximum)),
    }


def grant(question: Question, rounds: int, state: State) -> None:
    """An accepted justification: so many rounds (or calls of the loop) more, and no further."""
    if question.kind == "budget":
        fold.grant_rounds(state, rounds)
    else:
        fold.rearm(state, question.loop_id, "raise", rounds)


def person_closing(question: Question, choice: str, by: int, who: str, reason: str = "answered") -> Closing:
    """What a person's choice comes to."""
    if choice in ALLOWING:
        return Closing("allow", f"{who} {DONE[Choice(choice)].format(by=by)}.", reason, who, choice, by)
    message = f"The call was not run: an operator decided to skip it. {question.summary}. {_ADVICE}"
    return Closing("block", message, reason, who, choice)


def unanswered_closing(question: Question) -> Closing:
    """What the policy said should happen without an answer."""
    choice, decision = _UNATTENDED[question.unattended]
    who = "the judge" if question.asked_of == AskedOf.JUDGE else "anybody"
    message = {
        "block": f"The call was not run: it needed an operator's answer and got none in time. {question.summary}. {_ADVICE}",
        "stop": f"The run was stopped: it needed an answer of {who} and got none in time. {question.summary}. "
        "Break the request into smaller steps, or try another approach.",
        "allow": "Nobody answered in time, and the call is allowed, as the settings say.",
    }[decision]
    return Closing(decision, message, "unanswered", SYSTEM.name, choice, state=QuestionState.EXPIRED)


def who_is_asked(rung: str | None, session: Session, finding: Finding, policy: Policy) -> str:
    """Tell who is to answer a held call: a person, the judge, or (empty) nobody, and the call is stopped.

    A judge that is not there, not to be asked again, or not entitled to overrule this finding is replaced by a person
    where someone attends.
    """
    if rung != "judge":
        return AskedOf.PERSON
    if not judge.refusal(session, finding, policy):
        return AskedOf.JUDGE
    return AskedOf.PERSON if policy.values["attended"] else ""


def as_wire(question: Question) -> dict[str, Any]:
    """Return what a held verdict tells of its question."""
    return {
        "id": question.public_id,
        "deadline": question.deadline.isoformat(),
        "wait_url": f"{settings.LIVE_URL}/api/v1/questions/{question.public_id}?wait=30",
    }


def tells_now(question: Question, now: datetime) -> bool:
    """Whether a question is to be closed because its time is over."""
    return question.is_open and question.deadline <= now
