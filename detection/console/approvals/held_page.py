"""The page of held calls: groups that wait, decided and remembered approvals."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponsePermanentRedirect, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.approvals import decisions, held_groups
from detection.console.listing import Listing
from detection.models import ApprovalState
from detection.selectors import approvals as selector
from detection.selectors.lists import APPROVALS

PAGE_ROWS = 25


@in_project()
@require_safe
def earlier_address(request: ProjectRequest) -> HttpResponse:
    """Lead from where held calls had an entry of their own to Now, which has those that wait."""
    return HttpResponsePermanentRedirect(reverse("console:now", args=[request.project.slug]))


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show waiting approvals, the most urgent first, remembered decisions, and the approvals under the filter."""
    project, listing = request.project, Listing(request, APPROVALS)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    found = listing.page(selector.list_approvals, PAGE_ROWS)
    groups = held_groups.cards((project.pk,))
    others = held_groups.with_calls(groups, selector.waiting(project.pk))
    context = {
        "has_any": selector.has_any(project.pk),
        "groups": groups,
        "others": others,
        "listing": listing,
        "tabs": listing.tabs((("", "All"), *ApprovalState.choices), None),
        "rows": [decisions.closed(approval) for approval in found.items],
        "next_page": listing.next_page(found.next_cursor),
        "remembered": [
            (row, decisions.done_words(row.choice, row.raise_by)) for row in selector.remembered(project.pk)
        ],
        "expired": [decisions.closed(approval) for approval in selector.expired_recently(project.pk)],
        "near_limit": selector.near_limit(project.pk),
        "is_local": request.get_host().rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"),
    }
    return render(request, "approvals/page.html", context)
