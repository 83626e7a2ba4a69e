"""The Incidents page: tabs, filters in the address, actions on several incidents, and undo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from detection.console import incident_text
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.listing import Listing
from detection.models import Role
from detection.models.incidents import IncidentLabel
from detection.selectors import incidents as selector
from detection.selectors.lists import INCIDENTS
from detection.selectors.pages import BadCursor, Page
from detection.services.errors import ServiceError
from detection.services.incidents import triage as service

PAGE_ROWS = 50
MAX_AT_ONCE = 500
TABS = (
    ("open", "Open"),
    ("acknowledged", "Acknowledged"),
    ("snoozed", "Snoozed"),
    ("ended", "Ended"),
    ("resolved", "Resolved"),
    ("not_a_loop", "Not a loop"),
    ("", "All"),
)
_EXACT = ("open", "acknowledged", "snoozed")
"""Tabs whose number is exact however many incidents there are."""
SNOOZES = {
    "1h": timedelta(hours=1),
    "8h": timedelta(hours=8),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
DONE = {
    "acknowledge": "acknowledged",
    "resolve": "resolved",
    "reopen": "reopened",
    "snooze": "snoozed",
    "label": "labelled",
    "undo": "restored",
}


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the list."""
    project, listing = request.project, Listing(request, INCIDENTS)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    try:
        found = selector.list_incidents(project.pk, listing.query, listing.cursor, PAGE_ROWS)
    except BadCursor:
        found = Page((), None)
    counts = selector.counts(project.pk, listing.query)
    context = {
        "listing": listing,
        "tabs": listing.tabs(TABS, counts, _EXACT),
        "rows": [
            (
                row,
                incident_text.title(row),
                incident_text.STATUS_CHIPS[row.status],
                incident_text.did(row),
                incident_text.DECISION_CHIPS[row.decision],
            )
            for row in found.items
        ],
        "next_page": listing.next_page(found.next_cursor),
        "in_other_tabs": counts.all,
        "is_narrowed": listing.is_narrowed("is"),
        "all_url": listing.with_terms(without=("is",)),
    }
    return render(request, "console/incidents.html", context)


def arguments_of(request: ProjectRequest, action: str, span: str) -> dict[str, Any]:
    """Read the arguments of an action."""
    if action == "snooze":
        return {"until": timezone.now() + SNOOZES[span]} if span in SNOOZES else {"until_worse": True}
    if action == "label":
        value = request.POST.get("label", "")
        return {"value": value, "reason": span if value == IncidentLabel.FALSE_ALARM else ""}
    return {}


@in_project(Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Apply an action to the selected incidents and offer undo."""
    # A button carries the action with its duration or reason: "snooze:8h", "label:poll".
    action, _, span = request.POST.get("action", "").partition(":")
    ids = [part for text in request.POST.getlist("ids") for part in text.split()][:MAX_AT_ONCE]
    back = _back(request)
    if action == "comment" and len(ids) == 1:
        return _comment(request, ids[0], back)
    if not ids:
        messages.error(request, "No incident was selected.")
        return HttpResponseRedirect(back)
    try:
        outcome = service.bulk(
            request.project.pk, ids, action, actor_of(request), **arguments_of(request, action, span)
        )
    except ServiceError as error:
        messages.error(request, error.detail)
        return HttpResponseRedirect(back)
    done = [public_id for public_id, code in outcome.items() if code == "done"]
    failed = len(outcome) - len(done)
    if done:
        words = f"{len(done)} incident{'' if len(done) == 1 else 's'} {DONE[action]}."
        # The ids are part of the message, so Undo restores exactly these.
        messages.success(request, words, extra_tags="" if action == "undo" else " ".join(done[:100]))
    if failed:
        codes = ", ".join(sorted({code.replace("_", " ") for code in outcome.values() if code != "done"}))
        messages.error(request, f"{failed} could not be changed: {codes}.")
    return HttpResponseRedirect(back)


def _comment(request: ProjectRequest, public_id: str, back: str) -> HttpResponse:
    try:
        service.comment(request.project.pk, public_id, actor_of(request), request.POST.get("note", ""))
    except ServiceError as error:
        messages.error(request, error.detail)
    return HttpResponseRedirect(back)


def _back(request: ProjectRequest) -> str:
    wanted = request.POST.get("next", "")
    if wanted and url_has_allowed_host_and_scheme(wanted, {request.get_host()}):
        return wanted
    return reverse("console:incidents", args=[request.project.slug])
