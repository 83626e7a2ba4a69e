"""The Audit page."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.listing import Listing
from detection.console.policies.policy_pages import changes_of
from detection.filtering import language
from detection.selectors import audit
from detection.selectors.lists import AUDIT

PAGE_ROWS = 50
(_NOT_PEOPLE,) = language.parse(AUDIT.default_text)
KINDS = (
    ("", "All"),
    ("policy.*", "Settings"),
    ("session.*", "Sessions"),
    ("incident.*", "Runs"),
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
    terms = listing.query.terms
    is_people = _NOT_PEOPLE in terms
    others = [term for term in terms if term != _NOT_PEOPLE]
    context = {
        "listing": listing,
        "is_people": is_people,
        "people_url": listing.url(q=language.write(others if is_people else (*terms, _NOT_PEOPLE))),
        "tabs": listing.tabs(KINDS, None, field="action"),
        "entries": [(entry, changes_of(entry)[:12]) for entry in found.items],
        "next_page": listing.next_page(found.next_cursor),
    }
    return render(request, "projects/audit.html", context)
