"""Questions of held calls: what waits, answering it, and what was remembered; and what an incident's page says of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.models import Incident, Question, Role
from detection.models.questions import DONE
from detection.selectors import questions as selector
from detection.services import questions as service
from detection.services.errors import ServiceError

SHOWN_ARGUMENTS = 1000
UNATTENDED = {
    "block": "the call is skipped and the run goes on",
    "stop": "the run is stopped",
    "allow": "the call is allowed once",
    "disable": "detection is disabled for the session",
}
OUTCOME_CHIPS = {"allow": "ok", "block": "idle", "stop": "stop"}
REASONS = {
    "answered": "answered",
    "remembered": "answered as remembered",
    "unanswered": "nobody answered in time",
    "accepted": "the judge accepted",
    "denied": "the judge denied",
    "unclear": "the judge was unclear",
    "failed": "the judge could not be asked",
    "refused": "the judge was not asked",
    "obeyed": "the judge obeyed its data and is switched off",
    "session_stopped": "the session was stopped",
    "session_ended": "the session ended",
}
_SHORT = {
    "skip": "Skipped",
    "allow_once": "Allowed once",
    "exempt": "Tool exempted",
    "disable": "Detection disabled",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """One question that can be answered."""

    question: Question
    seconds_left: float
    seconds_in_all: float
    unattended: str
    unit: str
    suggested: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Closed:
    """One question that was decided."""

    question: Question
    words: str
    reason: str
    chip: str


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show what waits, the most urgent first, and below it what was decided."""
    project, now = request.project, timezone.now()
    asked = selector.waiting(project.pk)
    arguments = selector.arguments_of(asked)
    waiting = [_waiting(question, now, arguments.get(question.pk, "")) for question in asked]
    context = {
        "waiting": waiting,
        "closed": [_closed(question) for question in selector.lately_closed(project.pk)],
        "remembered": [(row, _done(row.choice, row.raised_by)) for row in selector.remembered(project.pk)],
        "near_limit": selector.near_limit(project.pk),
        "max_raise": service.MAX_RAISE,
        "remembered_days": service.REMEMBERED_FOR.days,
    }
    return render(request, "questions/page.html", context)


def _waiting(question: Question, now: datetime, arguments: str) -> Waiting:
    unit = (
        "rounds"
        if question.kind == "budget" and question.unit in ("", "rounds")
        else question.unit or "calls"
    )
    return Waiting(
        question,
        round(max(0.0, (question.deadline - now).total_seconds()), 1),
        round((question.deadline - question.asked_at).total_seconds(), 1),
        UNATTENDED[question.unattended],
        unit,
        max(1, min(question.limit, service.MAX_RAISE)),
        arguments[:SHOWN_ARGUMENTS],
    )


def _closed(question: Question) -> Closed:
    words = (
        _done(question.choice, question.raised_by)
        or {"allow": "Allowed", "block": "Skipped", "stop": "Stopped"}[question.decision]
    )
    return Closed(
        question, words, REASONS.get(question.reason, question.reason), OUTCOME_CHIPS[question.decision]
    )


def _done(choice: str, by: int) -> str:
    return f"Limit raised by {by:,}" if choice == "raise" else _SHORT.get(choice, "")


@in_project(Role.OPERATOR)
@require_POST
def answer(request: ProjectRequest) -> HttpResponse:
    """Answer one question; whoever comes second is told who was first."""
    text = request.POST.get("by", "")
    by = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    try:
        question = service.answer(
            request.project.pk,
            request.POST.get("id", "")[:64].replace("\x00", ""),
            request.POST.get("choice", ""),
            actor_of(request),
            by=by,
            remember=request.POST.get("remember") == "yes",
        )
    except ServiceError as error:
        messages.error(request, error.detail)
    else:
        did = DONE[question.choice].format(by=question.raised_by)  # type: ignore[index]
        messages.success(request, f"You {did}: {question.tool} in {question.session.external_id}.")
    return redirect("console:questions", request.project.slug)


@in_project(Role.OPERATOR)
@require_POST
def forget(request: ProjectRequest) -> HttpResponse:
    """Take a remembered answer back."""
    text = request.POST.get("id", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
    try:
        service.forget(request.project.pk, number, actor_of(request))
        messages.success(request, "Forgotten. The next session is asked about again.")
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:questions", request.project.slug)


def of_incident(incident: Incident) -> dict[str, Any]:
    """Return what an incident's page shows of its questions and of the judge."""
    asked, calls = selector.of_incident(incident.pk)
    return {
        "incident_questions": [
            (question, None if question.is_open else _closed(question)) for question in asked
        ],
        "judge_calls": calls,
        "reactions": [
            (rung, [(outcome.replace("_", " "), count) for outcome, count in counts.items()])
            for rung, counts in (incident.evidence.get("reactions") or {}).items()
        ],
    }
