"""The Approvals page: waiting, decided and remembered approvals; and those of one incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.console.formatting import visible
from detection.console.loops.incident_text import OUTCOME_CHIPS
from detection.engine.detectors import detector_for
from detection.engine.reactions import DECISION_OF
from detection.models import Approval, Incident, Role
from detection.models.approvals import CONTAINMENT, DONE
from detection.models.incidents import ReactionOutcome
from detection.selectors import approvals as selector
from detection.selectors.incidents import get_incident
from detection.services.approvals import decisions as service
from detection.services.approvals import judge_consultation
from detection.services.errors import ServiceError

SHOWN_ARGUMENTS = 1000
UNATTENDED = {
    "block": "the call is skipped and the run continues",
    "stop": "a stop of the run is requested",
    "allow": "the call is allowed once",
    "disable": "detection is disabled for the session",
}
REASONS = {
    "decided": "decided",
    "remembered": "remembered decision",
    "expired": "nobody decided in time",
    "accepted": "the judge accepted",
    "denied": "the judge denied",
    "unclear": "the judge's ruling was unclear",
    "failed": "the call to the judge failed",
    "skipped": "the judge was not called",
    "obeyed": "the judge followed instructions in its data and is disabled",
    "session_stopped": "a stop was requested",
    "session_ended": "the session ended",
}
ERRORS = {"invalid_raise": f"Raise the limit by 1 to {service.MAX_RAISE:,}."}
"""Errors that name fields of the API, for people."""
_SHORT = {
    "skip": "Skipped",
    "allow_once": "Allowed once",
    "exempt": "Tool exempted",
    "disable": "Detection disabled",
    "stop": "Stop requested",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """An approval that can be decided."""

    approval: Approval
    seconds_left: float
    seconds_in_all: float
    unattended: str
    unit: str
    suggested: int
    arguments: str
    is_rememberable: bool
    remembered_days: int = service.REMEMBERED_FOR.days

    @property
    def is_budget(self) -> bool:
        """Whether a limit of the run is reached, so that the next call is as good or bad as this one."""
        return is_budget(self.approval.kind)

    @property
    def raise_label(self) -> str:
        """The label of the number of a raise, for screen readers."""
        tool = self.approval.tool
        return (
            f"{self.unit.capitalize()} to grant {tool}" if self.is_budget else f"Raise the limit of {tool} by"
        )


@dataclass(frozen=True, slots=True)
class Closed:
    """A decided approval; `by` is the person who decided, if any."""

    approval: Approval
    words: str
    reason: str
    chip: str
    by: str

    @property
    def seconds_in_all(self) -> float:
        """How long a person had to decide, in seconds."""
        return (self.approval.deadline - self.approval.requested_at).total_seconds()


def waiting(approvals: Sequence[Approval]) -> list[Waiting]:
    """Prepare open approvals for their cards, with the arguments of the calls; one query."""
    now, arguments = timezone.now(), selector.arguments_of(approvals)
    return [_waiting(approval, now, arguments.get(approval.pk, "")) for approval in approvals]


def _waiting(approval: Approval, now: datetime, arguments: str) -> Waiting:
    return Waiting(
        approval,
        round(max(0.0, (approval.deadline - now).total_seconds()), 1),
        round((approval.deadline - approval.requested_at).total_seconds(), 1),
        UNATTENDED[approval.unattended],
        unit_of_raise(approval),
        max(1, min(approval.limit, service.MAX_RAISE)),
        arguments[:SHOWN_ARGUMENTS],
        approval.kind != CONTAINMENT and not is_budget(approval.kind),
    )


def is_budget(kind: str) -> bool:
    """Return whether a limit of the run holds a call, not what the call does."""
    return kind != CONTAINMENT and detector_for(kind).is_run_limit


def unit_of_raise(approval: Approval) -> str:
    """Return what a raise of the limit of an approval counts."""
    is_rounds = detector_for(approval.kind).is_run_limit and approval.unit in ("", "rounds")
    return "rounds" if is_rounds else approval.unit or "calls"


def raise_by_of(request: ProjectRequest) -> int:
    """Return the raise of a form, 0 if it is no number."""
    text = request.POST.get("raise_by", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0


def closed(approval: Approval) -> Closed:
    """Return how an approval was closed, in words; None while it is open."""
    if approval.is_open:
        return Closed(approval, "Waiting", "", "held", "")
    words = (
        done_words(approval.choice, approval.raise_by)
        or {"allow": "Allowed", "block": "Skipped", "stop": "Stopped"}[approval.decision]
    )
    reason = REASONS.get(approval.reason, approval.reason)
    by = "" if approval.decided_by in ("system", "judge") else approval.decided_by
    return Closed(approval, words, reason, OUTCOME_CHIPS[approval.decision], by)


def done_words(choice: str, by: int) -> str:
    """Return a choice as what was done."""
    return f"Limit raised by {by:,}" if choice == "raise" else _SHORT.get(choice, "")


@in_project(Role.OPERATOR)
@require_POST
def decide(request: ProjectRequest) -> HttpResponse:
    """Decide an approval; a second decision is rejected with the name of the first decider.

    A script that asks for JSON gets the outcome instead of a page: the panel of held calls answers in place.
    """
    try:
        approval = service.decide(
            request.project.pk,
            request.POST.get("id", "")[:64],
            request.POST.get("choice", ""),
            actor_of(request),
            raise_by=raise_by_of(request),
            remember=request.POST.get("remember") == "yes",
        )
    except ServiceError as error:
        status, text = error.status, ERRORS.get(error.code, error.detail)
    else:
        did = DONE[approval.choice].format(by=approval.raise_by)
        status, text = 200, f"You {did}: {approval.tool} in {approval.session.external_id}."
    if request.headers.get("Accept") == "application/json":
        return JsonResponse({"detail": visible(text)}, status=status)
    (messages.success if status == 200 else messages.error)(request, text)
    return HttpResponseRedirect(next_page(request, reverse("console:held", args=[request.project.slug])))


@in_project(Role.OPERATOR)
@require_POST
def delete_remembered(request: ProjectRequest) -> HttpResponse:
    """Delete a remembered decision."""
    text = request.POST.get("id", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
    try:
        service.delete_remembered(request.project.pk, number, actor_of(request))
        messages.success(request, "Remembered decision deleted. The next such call waits for a decision.")
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:held", request.project.slug)


@in_project(Role.OPERATOR)
@require_POST
def label_ruling(request: ProjectRequest) -> HttpResponse:
    """Label a ruling of the judge, and return to its incident."""
    label = request.POST.get("label", "")
    try:
        judge_consultation.label_ruling(
            request.project.pk, request.POST.get("id", "")[:64], label, actor_of(request)
        )
        messages.success(request, f"Ruling labelled {label}." if label else "Label removed.")
    except ServiceError as error:
        messages.error(request, error.detail)
    public_id = request.POST.get("incident", "")[:64]
    if get_incident(request.project.pk, public_id) is None:
        return redirect("console:held", request.project.slug)
    return redirect("console:incident", request.project.slug, public_id)


def _rung_order(reaction: tuple[str, Any]) -> int:
    """Return the position of a reaction's rung, weakest first; JSON does not keep the order."""
    rungs = tuple(DECISION_OF)
    return rungs.index(reaction[0]) if reaction[0] in rungs else len(rungs)


def of_incident(incident: Incident) -> dict[str, Any]:
    """Return the approvals, judge calls and reactions of an incident for its page."""
    approvals, calls = selector.of_incident(incident)
    return {
        "incident_approvals": [
            (approval, None if approval.is_open else closed(approval)) for approval in approvals
        ],
        "judge_calls": calls,
        "reactions": [
            (rung, [(ReactionOutcome(outcome).label.lower(), count) for outcome, count in counts.items()])
            for rung, counts in sorted((incident.evidence.get("reactions") or {}).items(), key=_rung_order)
        ],
    }
