"""Suggestions: policy changes that labels support, to try, accept or reject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.formatting import job_state
from detection.console.policies.policy_pages import expiry_of
from detection.console.policies.replay_words import ReplayWords, words_of
from detection.console.policies.what_if import differences
from detection.filtering import language
from detection.models import Role, Suggestion, SuggestionDecision, WhatIf
from detection.services.errors import NotFound, ServiceError
from detection.services.learning import decisions
from detection.services.learning.suggestions import MIN_ALIKE, MIN_LABELS, OpenSuggestion, learn

KINDS: Final = {
    "limit": "Limit",
    "poll": "Poll",
    "volatile_argument": "Volatile argument",
    "volatile_result": "Volatile result",
}
DONE: Final = {
    "accept": "Suggestion accepted. It takes effect on the next call.",
    "reject": "Suggestion rejected. It will not be suggested again.",
    "undo": "Decision undone.",
}
MAX_DECIDED: Final = 50
MAX_NOTE: Final = 300


@dataclass(frozen=True, slots=True)
class SuggestionPanel:
    """A suggestion as the page shows it; `row` is set once it is decided."""

    id: str
    kind: str
    words: str
    reason: str
    labels: int
    incidents_url: str
    differences: list[tuple[str, str, str]]
    row: Suggestion | None
    what_if: WhatIf | None

    @property
    def replay(self) -> ReplayWords | None:
        """What its what-if found, in words."""
        return words_of(self.what_if.result) if self.what_if and self.what_if.result else None

    @property
    def chip(self) -> str:
        """The chip of the state of its what-if."""
        return job_state(self.what_if.state)[0] if self.what_if else ""

    @property
    def word(self) -> str:
        """The state of its what-if."""
        return job_state(self.what_if.state)[1] if self.what_if else ""


def open_context(request: ProjectRequest) -> dict[str, object]:
    """Return the suggestions that the labels support now, and the newest decisions about earlier ones."""
    learned = learn(request.project)
    decided = Suggestion.objects.filter(project=request.project)[:MAX_DECIDED]
    return {
        "suggestions": [_panel(request, one) for one in learned.suggestions],
        "decided_suggestions": [_panel_of_row(request, row) for row in decided],
        "learned": learned,
        "needed": MIN_LABELS,
        "alike": MIN_ALIKE,
        "is_unavailable": not request.project.stores_payloads,
    }


@in_project(Role.ADMIN)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Accept, reject or undo a suggestion."""
    action, public_id = request.POST.get("action", ""), request.POST.get("id", "")[:64]
    note = request.POST.get("note", "")[:MAX_NOTE]
    about = request.project.pk, public_id, actor_of(request)
    try:
        if action == "accept":
            decisions.accept(*about, note=note, expires_at=expiry_of(request))
        elif action == "reject":
            decisions.reject(*about, note=note)
        elif action == "undo":
            decisions.undo(*about)
        else:
            raise Http404
        messages.success(request, DONE[action])
    except NotFound:
        messages.error(request, "The labels no longer support this suggestion.")
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect(_address(request))


@in_project(Role.OPERATOR)
@require_POST
def try_on_history(request: ProjectRequest) -> HttpResponse:
    """Create the what-if of a suggestion."""
    try:
        row = decisions.try_on_history(request.project.pk, request.POST.get("id", "")[:64], actor_of(request))
    except NotFound:
        messages.error(request, "The labels no longer support this suggestion.")
    except ServiceError as error:
        messages.error(request, error.detail)
    else:
        return redirect("console:what_if", request.project.slug, row.public_id)
    return redirect(_address(request))


def _address(request: ProjectRequest) -> str:
    return f"{reverse('console:policies', args=[request.project.slug])}#suggestions"


def _panel(request: ProjectRequest, one: OpenSuggestion) -> SuggestionPanel:
    change = one.change.as_dict()
    return SuggestionPanel(
        one.id,
        KINDS[one.kind],
        one.words,
        one.reason,
        one.labels,
        _incidents_url(request, change["scope"]),
        differences(request, change),
        None,
        decisions.latest_what_if(request.project.pk, change),
    )


def _panel_of_row(request: ProjectRequest, row: Suggestion) -> SuggestionPanel:
    is_rejected = row.decision == SuggestionDecision.REJECTED
    return SuggestionPanel(
        row.public_id,
        KINDS.get(row.kind, row.kind),
        row.words,
        row.reason,
        row.labels,
        _incidents_url(request, row.change["scope"]),
        differences(request, row.change) if is_rejected else [],
        row,
        decisions.latest_what_if(request.project.pk, row.change),
    )


def _incidents_url(request: ProjectRequest, scope: str) -> str:
    """Return the address of the labelled incidents of a scope."""
    kind, _, name = scope.partition(":")
    terms: list[Any] = [language.Term("label", (language.Value("none"),), is_negated=True)]
    if kind == "tool":
        terms.append(language.term("tool", name.replace("[", "").replace("]", "")))
    else:
        backend, _, model = name.partition("/")
        terms += [language.term("backend", backend), language.term("model", model)]
    address = reverse("console:loop_history", args=[request.project.slug])
    return f"{address}?{urlencode({'q': ' '.join(map(str, terms)), 'range': '90d'})}"
