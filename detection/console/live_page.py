"""The live page: the list of sessions with filters, figures, and stopping several at once."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from detection import clock
from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.console.listing import Listing
from detection.console.session_rows import session_row, stop_sentence
from detection.filtering import language
from detection.models import Role, SessionState
from detection.models.session_state import RARE_STATES
from detection.selectors import dashboard
from detection.selectors import sessions as selector
from detection.selectors.lists import INCIDENTS, ONLY_LOOPS, SESSIONS
from detection.services.retention import removal
from detection.services.sessions import actions as service
from detection.services.sessions.session_names import find_session

PAGE_ROWS = (50, 200, 500)
"""Rows that a page can have; the first is the default."""
MAX_SELECTED = 200
TABS = (("", "All"), *SessionState.choices)
_EXACT = ("running", SessionState.SILENT, *RARE_STATES)
"""Tabs whose number is exact however many sessions there are."""


def listing_of(request: ProjectRequest) -> Listing:
    """Return the listing that the address of the live page, or of a part of it, selects."""
    path = reverse("console:live", args=[request.project.slug])
    return Listing(request, SESSIONS, kept=("rows",), path=path)


def page_rows(request: ProjectRequest) -> int:
    """Return the number of rows that the address asks for."""
    given = request.GET.get("rows", "")
    return next((rows for rows in PAGE_ROWS if str(rows) == given), PAGE_ROWS[0])


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the list."""
    project, now, listing = request.project, clock.now(), listing_of(request)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    # Taken before the rows are read, so a change committed in between is sent again.
    cursor = selector.changed_since(project.pk, "").cursor
    found = listing.page(selector.list_sessions, page_rows(request))
    context = {
        "cursor": cursor,
        "listing": listing,
        **_figures(request, listing),
        "rows": [session_row(row, now) for row in found.items],
        "next_page": listing.next_page(found.next_cursor),
        "row_limit": page_rows(request),
        "row_choices": [
            (rows, listing.url(rows="" if rows == PAGE_ROWS[0] else str(rows)), rows == page_rows(request))
            for rows in PAGE_ROWS
        ],
        "has_demo": dashboard.has_demo(project.pk),
    }
    return render(request, "live/page.html", context)


@in_project()
@require_safe
def figures(request: ProjectRequest) -> HttpResponse:
    """Return only the figures and tabs, to refresh them."""
    return render(request, "live/_figures.html", _figures(request, listing_of(request)))


def _figures(request: ProjectRequest, listing: Listing) -> dict[str, Any]:
    """Return tiles and tabs: all of them count the sessions under the filter of the list."""
    counts = dashboard.state_counts(request.project.pk, listing.query)
    incidents = reverse("console:incidents", args=[request.project.slug])
    return {
        "listing": listing,
        "kpis": dashboard.kpis(request.project.pk, listing.query),
        "counts": counts,
        "tabs": listing.tabs(TABS, counts, _EXACT),
        "last_minute": listing.url(
            q=language.write(language.without(listing.query.terms, ("is",))), range="1m"
        ),
        "loops_today": listing.url_in(INCIDENTS, incidents, language.term("first", "yes"), range="24h"),
        "blocked_today": listing.url_in(
            INCIDENTS, incidents, *language.parse("blocked:>0"), range="24h", sort="-blocked"
        ),
        "spent_today": listing.url_in(
            INCIDENTS, incidents, *language.parse(ONLY_LOOPS), range="24h", sort="-cost"
        ),
    }


@in_project(Role.OPERATOR)
@require_POST
def stop(request: ProjectRequest) -> HttpResponse:
    """Stop the selected sessions, or all that are running."""
    names = request.POST.getlist("session")[:MAX_SELECTED]
    everything = request.POST.get("all") == "yes"
    if not names and not everything:
        messages.error(request, "No session was selected.")
    else:
        reason = request.POST.get("reason", "")[:300]
        sessions = [find_session(request.project, name) for name in names]
        known = None if everything else [session.external_id for session in sessions if session is not None]
        reached = service.stop_many(request.project.pk, known, actor_of(request), reason)
        messages.success(request, stop_sentence(reached))
    return HttpResponseRedirect(next_page(request, reverse("console:live", args=[request.project.slug])))


@in_project(Role.ADMIN)
@require_POST
def remove_demo(request: ProjectRequest) -> HttpResponse:
    """Delete the demo sessions and their incidents."""
    count = removal.remove_demo(request.project.pk, actor_of(request))
    messages.success(request, f"Demo data removed: {count} sessions and their incidents.")
    return redirect("console:live", request.project.slug)
