"""The Audit page."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.listing import Listing
from detection.console.policies import changes_of
from detection.selectors import audit
from detection.selectors.lists import AUDIT

PAGE_ROWS = 50
KINDS = (
    ("", "All"),
    ("policy.*", "Settings"),
    ("session.*", "Sessions"),
    ("incident.*", "Incidents"),
    ("key.*", "Keys"),
)


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the entries."""
    listing = Listing(request, AUDIT)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    found = listing.page(audit.list_entries, PAGE_ROWS, with_server=True)
    context = {
        "listing": listing,
        "tabs": listing.tabs(KINDS, None, field="action"),
        "entries": [(entry, changes_of(entry)[:12]) for entry in found.items],
        "next_page": listing.next_page(found.next_cursor),
    }
    return render(request, "console/audit.html", context)
