"""The Incidents page: tabs, filters in the address, actions on several incidents, and undo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from detection.console import list_actions
from detection.console.access import ProjectRequest, in_project
from detection.console.list_actions import ListActions
from detection.console.listing import Listing
from detection.console.loops import incident_text
from detection.engine.detectors import detector_for
from detection.models import Incident, Role
from detection.models.incidents import IncidentLabel
from detection.selectors import approvals, bulk_actions, sessions
from detection.selectors import incidents as selector
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.lists import INCIDENTS, NO_LIMITS, ONLY_LOOPS
from detection.services.incidents import triage as service

PAGE_ROWS = 50
TABS = (
    ("open", "Open"),
    ("acknowledged", "Acknowledged"),
    ("snoozed", "Snoozed"),
    ("ended", "Ended"),
    ("resolved", "Resolved"),
    ("", "All"),
    ("not_a_loop", "of them not a loop"),
)
_EXACT = ("open", "acknowledged", "snoozed")
"""Tabs whose number is exact however many incidents there are."""
SNOOZES = {
    "1h": timedelta(hours=1),
    "8h": timedelta(hours=8),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the list."""
    project, listing = request.project, Listing(request, INCIDENTS)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    found = listing.page(selector.list_incidents, PAGE_ROWS)
    counts = selector.counts(project.pk, listing.query)
    tabs = listing.tabs(TABS, counts, _EXACT)
    held = approvals.latest_of(project.pk, (row.id for row in found.items if row.decision == "hold"))
    stopped = sessions.stopped_among(project.pk, {row.session_name for row in found.items if row.is_active})
    context = {
        "listing": listing,
        # Under a filter of labels it would only repeat or contradict that.
        "tabs": [
            tab for tab in tabs if tab.value != "not_a_loop" or tab.is_current or not listing.has("label")
        ],
        "rows": [
            (
                row,
                incident_text.title(row, row.program or ""),
                incident_text.STATUS_CHIPS[row.status],
                incident_text.progress(row, held.get(row.id), is_blocked=row.session_name in stopped),
                incident_text.did(row, held.get(row.id)),
                incident_text.did_chip(row, held.get(row.id)),
                _other_detectors(row),
            )
            for row in found.items
        ],
        "costly_url": listing.url(q=f"{ONLY_LOOPS} {NO_LIMITS}", range="7d", sort="-cost"),
        "next_page": listing.next_page(found.next_cursor),
        "in_other_tabs": counts.all,
        "is_narrowed": listing.is_narrowed("is"),
        "all_url": listing.with_terms(without=("is",)),
        "matching": next((tab for tab in tabs if tab.is_current), None),
        "up_to": selector.newest_key(project.pk),
        **list_actions.progress(
            request, bulk_actions.shown(project.pk, "incidents", request.user.get_username())
        ),
    }
    return render(request, "loops/incidents.html", context)


def _other_detectors(row: IncidentRow) -> str:
    """Return the detectors that found a row's loop without acting."""
    return ", ".join(detector_for(kind).label for kind in row.kinds if kind != row.kind)


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


ACTIONS = ListActions(INCIDENTS, "incident", Incident, selector.matching_keys, service, arguments_of)


@in_project(Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Apply an action to incidents and offer undo."""
    return list_actions.act(request, ACTIONS)
