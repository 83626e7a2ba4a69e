"""The history of incidents: every run of every loop in order of time, with filter, range and export."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpResponse, HttpResponsePermanentRedirect, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.listing import Listing
from detection.console.loops import incident_text
from detection.console.loops.loop_list import tabs_of
from detection.engine.detectors import detector_for
from detection.selectors import approvals, sessions
from detection.selectors import incidents as selector
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.lists import INCIDENTS, NO_LIMITS, ONLY_LOOPS

PAGE_ROWS = 50


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the list."""
    project, listing = request.project, Listing(request, INCIDENTS)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    found = listing.page(selector.list_incidents, PAGE_ROWS)
    held = approvals.latest_of(project.pk, (row.id for row in found.items if row.decision == "hold"))
    stopped = sessions.stopped_among(project.pk, {row.session_name for row in found.items if row.is_active})
    context = {
        "listing": listing,
        "tabs": tabs_of(project.slug),
        "rows": [
            (
                row,
                incident_text.title(row, row.program or ""),
                incident_text.progress(row, held.get(row.id), is_blocked=row.session_name in stopped),
                incident_text.did(row, held.get(row.id)),
                incident_text.did_chip(row, held.get(row.id)),
                _other_detectors(row),
            )
            for row in found.items
        ],
        "costly_url": listing.url(q=f"{ONLY_LOOPS} {NO_LIMITS}", range="7d", sort="-cost"),
        "next_page": listing.next_page(found.next_cursor),
        "is_narrowed": bool(listing.text or listing.range.text),
        "all_url": listing.url(q="", range=""),
    }
    return render(request, "loops/history.html", context)


def _other_detectors(row: IncidentRow) -> str:
    """Return the detectors that found a row's loop without acting."""
    return ", ".join(detector_for(kind).label for kind in row.kinds if kind != row.kind)


@in_project()
@require_safe
def earlier_address(request: ProjectRequest) -> HttpResponse:
    """Lead from the list of incidents, which without a filter showed those that were open."""
    given = request.GET.copy()
    given.setdefault("q", "is:open")
    address = reverse("console:loop_history", args=[request.project.slug])
    return HttpResponsePermanentRedirect(f"{address}?{urlencode([*given.lists()], doseq=True)}")
