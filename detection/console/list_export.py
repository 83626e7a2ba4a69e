"""Exports of the console's lists: exactly the rows that the address selects, on all pages."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.listing import Listing
from detection.selectors.lists import LISTS
from detection.web.exports import EXPORTED_LISTS, list_file


@in_project()
@require_safe
def export(request: ProjectRequest, name: str) -> HttpResponseBase:
    """Return a list as a file, CSV or JSON lines; with an invalid filter, go back to the project with the reason."""
    if name not in EXPORTED_LISTS:
        raise Http404
    return export_of(
        request, Listing(request, LISTS[name]), **{"with_server": True} if name == "audit" else {}
    )


def export_of(request: ProjectRequest, listing: Listing, **more: Any) -> HttpResponseBase:
    """Return the file of a listing; `more` are further arguments of the list's reader."""
    if listing.error or listing.range_error:
        messages.error(request, listing.error or listing.range_error)
        return HttpResponseRedirect(reverse("console:project", args=[request.project.slug]))
    return list_file(
        request.project.pk,
        request.project.slug,
        listing.query,
        request.GET.get("format", ""),
        **more,
    )
