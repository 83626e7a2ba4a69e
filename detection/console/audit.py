"""The Audit page and its export."""

from __future__ import annotations

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection import exports
from detection.console.access import ProjectRequest, in_project
from detection.console.policies import changes_of
from detection.selectors import audit
from detection.selectors.audit import AuditFilters
from detection.selectors.pages import BadCursor, Page

KINDS = (
    ("", "All"),
    ("policy", "Settings"),
    ("session", "Sessions"),
    ("incident", "Incidents"),
    ("key", "Keys"),
)
FORMATS = (("csv", "Export CSV"), ("jsonl", "Export JSON lines"))


def _filters(request: ProjectRequest) -> AuditFilters:
    kind = request.GET.get("kind", "")
    return AuditFilters(
        action=kind if kind in dict(KINDS) else "",
        actor=request.GET.get("actor", "")[:150],
        with_server=True,
    )


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the entries, newest first."""
    filters = _filters(request)
    try:
        found = audit.list_entries(request.project.pk, filters, request.GET.get("cursor", ""))
    except BadCursor:
        found = Page((), None)
    context = {
        "entries": [(entry, changes_of(entry)[:12]) for entry in found.items],
        "next_cursor": found.next_cursor,
        "kinds": [(value, words, value == filters.action) for value, words in KINDS],
        "actor": filters.actor,
        "is_first_page": "cursor" not in request.GET,
        "formats": FORMATS,
        "most_rows": exports.MAX_ROWS,
    }
    return render(request, "console/audit.html", context)


@in_project()
@require_safe
def export(request: ProjectRequest) -> HttpResponseBase:
    """Return all pages of the listed entries as a file."""
    rows = audit.export_entries(request.project.pk, _filters(request), exports.MAX_ROWS)
    return exports.audit_file(rows, request.GET.get("format", ""), request.project.slug)
