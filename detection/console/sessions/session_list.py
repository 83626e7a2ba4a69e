"""The list of sessions with its tabs, and what is done with several at once: stop and resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from detection import clock
from detection.console import permalinks
from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.console.listing import Listing
from detection.console.sessions.session_rows import STOPPED, session_row, stop_sentence
from detection.models import Role, Session, SessionState
from detection.models.session_state import RARE_STATES
from detection.selectors import dashboard
from detection.selectors import sessions as selector
from detection.selectors.lists import SESSIONS
from detection.services.errors import ServiceError
from detection.services.retention import removal
from detection.services.sessions import actions as service
from detection.services.sessions.session_names import find_session

PAGE_ROWS = (50, 200, 500)
"""Rows that a page can have; the first is the default."""
MAX_SELECTED = 200
TABS: Final = (
    ("active", "Active"),
    ("looping_now", "Looping now"),
    ("silent", "Silent"),
    ("held", "Held"),
    ("to_stop", "Stopped"),
    ("ended", "Ended"),
)
_EXACT = ("looping_now", SessionState.SILENT, "to_stop", *RARE_STATES)
"""Tabs whose number is exact however many sessions there are."""


@in_project()
@require_safe
def earlier_address(request: ProjectRequest) -> HttpResponse:
    """Lead from where the list was called Live, whose address without a filter had all sessions."""
    query = request.META["QUERY_STRING"] or "q="
    return HttpResponseRedirect(f"{reverse('console:sessions', args=[request.project.slug])}?{query}")


def listing_of(request: ProjectRequest) -> Listing:
    """Return the listing that the address of the list, or of a part of it, selects."""
    path = reverse("console:sessions", args=[request.project.slug])
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
        "tabs": _tabs(request, listing),
        "rows": [session_row(row, now) for row in found.items],
        "next_page": listing.next_page(found.next_cursor),
        "row_limit": page_rows(request),
        "row_choices": [
            (rows, listing.url(rows="" if rows == PAGE_ROWS[0] else str(rows)), rows == page_rows(request))
            for rows in PAGE_ROWS
        ],
        "has_demo": dashboard.has_demo(project.pk),
    }
    return render(request, "sessions/page.html", context)


@in_project()
@require_safe
def tabs(request: ProjectRequest) -> HttpResponse:
    """Return only the tabs, to refresh their numbers."""
    listing = listing_of(request)
    return render(request, "sessions/_tabs.html", {"listing": listing, "tabs": _tabs(request, listing)})


def _tabs(request: ProjectRequest, listing: Listing) -> list[Any]:
    """Return the tabs, which count the sessions under the filter of the list."""
    return listing.tabs(TABS, dashboard.state_counts(request.project.pk, listing.query), _EXACT)


@in_project(Role.OPERATOR)
@require_POST
def change(request: ProjectRequest) -> HttpResponse:
    """Stop or resume the selected sessions."""
    names = request.POST.getlist("session")[:MAX_SELECTED]
    sessions = [session for name in names if (session := find_session(request.project, name)) is not None]
    if not sessions:
        messages.error(request, "No session was selected.")
    elif (action := request.POST.get("action")) in ("resume", "withdraw"):
        _resume(request, sessions, "Stop withdrawn from" if action == "withdraw" else "Resumed")
    else:
        known = [session.external_id for session in sessions]
        reason = request.POST.get("reason", "")[:300]
        reached = service.stop_many(request.project.pk, known, actor_of(request), reason)
        only = known[0] if len(known) == 1 else ""
        opens = permalinks.session_url(request.project.slug, only) if only else ""
        # Undo lets those go on that nothing had stopped before.
        fresh = [session.external_id for session in sessions if not session.stopped_by_kind]
        undo = "\n".join((STOPPED, *fresh)) if fresh else opens
        messages.success(request, stop_sentence(reached, only), extra_tags=undo)
    return HttpResponseRedirect(next_page(request, reverse("console:sessions", args=[request.project.slug])))


def _resume(request: ProjectRequest, sessions: Sequence[Session], done: str) -> None:
    """Resume those of the sessions that are to be stopped."""
    actor, resumed = actor_of(request), 0
    for session in sessions:
        if not session.stopped_by_kind:
            continue
        try:
            service.resume(request.project.pk, session.external_id, actor)
        except ServiceError as error:
            messages.error(request, f"{session.external_id}: {error.detail}")
        else:
            resumed += 1
    words = (
        f"{done} {resumed:,} session{'' if resumed == 1 else 's'}." if resumed else "None of them is stopped."
    )
    messages.success(request, words)


@in_project(Role.ADMIN)
@require_POST
def remove_demo(request: ProjectRequest) -> HttpResponse:
    """Delete the demo sessions and their loops."""
    count = removal.remove_demo(request.project.pk, actor_of(request))
    messages.success(request, f"Demo data removed: {count} sessions and their loops.")
    return redirect("console:sessions", request.project.slug)
