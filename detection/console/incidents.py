"""The Incidents page: tabs, filters in the address, actions on several incidents, and undo."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
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
from detection.services import brief_records
from detection.services.errors import ServiceError
from detection.services.incidents import triage as service

PAGE_ROWS = 50
MAX_AT_ONCE = 500
MAX_MATCHING = 5_000
BULK_SECONDS = 8.0
"""After this time, the rest of a long list is left to the next request."""
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
_BATCH, _CHUNK, _NAMED_IN_FORM = "batch:", 50, 20
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
    tabs = listing.tabs(TABS, counts, _EXACT)
    context = {
        "listing": listing,
        "tabs": tabs,
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
        "matching": next((tab.count for tab in tabs if tab.is_current), 0),
        "up_to": selector.newest_id(project.pk),
    }
    return render(request, "console/incidents.html", context)


def arguments_of(request: ProjectRequest, action: str, span: str) -> dict[str, Any]:
    """Read the arguments of an action."""
    if action == "snooze":
        return {"until": timezone.now() + SNOOZES[span]} if span in SNOOZES else {"until_worse": True}
    if action == "label":
        if span == IncidentLabel.FALSE_ALARM:  # of several at once, without a reason
            return {"value": span}
        value = request.POST.get("label", "")
        return {"value": value, "reason": span if value == IncidentLabel.FALSE_ALARM else ""}
    return {}


@in_project(Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Apply an action to the selected incidents and offer undo."""
    # A button carries the action with its duration, label or reason: "snooze:8h", "label:false_alarm", "label:poll".
    action, _, span = request.POST.get("action", "").partition(":")
    ids, back = _ids(request), _back(request)
    if action == "comment" and len(ids) == 1:
        return _comment(request, ids[0], back)
    if not ids:
        messages.error(request, "No incident was selected.")
        return HttpResponseRedirect(back)
    outcome: dict[str, str] = {}
    until, arguments = time.monotonic() + BULK_SECONDS, arguments_of(request, action, span)
    try:
        for first in range(0, len(ids), _CHUNK):
            chunk = ids[first : first + _CHUNK]
            outcome |= service.bulk(request.project.pk, chunk, action, actor_of(request), **arguments)
            if time.monotonic() > until:
                break
    except ServiceError as error:
        messages.error(request, error.detail)
        return HttpResponseRedirect(back)
    _report(request, action, outcome, left=len(ids) - len(outcome))
    return HttpResponseRedirect(back)


def _ids(request: ProjectRequest) -> list[str]:
    """Return the selected incidents: named ones, those of an action to be undone, or all that match the filter.

    All that match are those that the page could have known: incidents that opened later are not among them.
    """
    given = [part for text in request.POST.getlist("ids") for part in text.split()]
    if request.POST.get("matching") == "yes":
        up_to = request.POST.get("up_to", "")
        if not (up_to.isascii() and up_to.isdigit() and len(up_to) < 19):
            return []
        request.GET = QueryDict(request.POST.get("filter", "")[:4000])
        listing = Listing(request, INCIDENTS)
        return selector.matching_ids(request.project.pk, listing.query, int(up_to), MAX_MATCHING)
    if len(given) == 1 and given[0].startswith(_BATCH):
        _, stored = brief_records.load(_batch_key(request, given[0]))
        return [*stored] if stored else []
    return [*dict.fromkeys(given)][:MAX_AT_ONCE]


def _report(request: ProjectRequest, action: str, outcome: dict[str, str], *, left: int) -> None:
    """Say what was done, with undo for exactly that."""
    done = [public_id for public_id, code in outcome.items() if code == "done"]
    if done:
        words = f"{len(done):,} incident{'' if len(done) == 1 else 's'} {DONE[action]}."
        if left:
            words += f" {left:,} are left: repeat the action."
        messages.success(request, words, extra_tags="" if action == "undo" else _undo_name(request, done))
    if failed := len(outcome) - len(done):
        codes = ", ".join(sorted({code.replace("_", " ") for code in outcome.values() if code != "done"}))
        messages.error(request, f"{failed:,} could not be changed: {codes}.")


def _undo_name(request: ProjectRequest, done: list[str]) -> str:
    """Return what the form of Undo sends: a few ids, or the name of a stored list of them."""
    if len(done) <= _NAMED_IN_FORM:
        return " ".join(done)
    name = f"{_BATCH}{secrets.token_urlsafe(12)}"
    brief_records.store(_batch_key(request, name), done, service.UNDO_WITHIN.total_seconds())
    return name


def _batch_key(request: ProjectRequest, name: str) -> str:
    return brief_records.key_of("undo", request.project.pk, request.user.pk, name)


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
