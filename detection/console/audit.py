"""Who changed what, when and from where. Nothing here can be changed."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.policies import changes_of
from detection.selectors import dashboard

KINDS = (
    ("", "Everything"),
    ("policy.", "Settings"),
    ("session.", "Sessions"),
    ("incident.", "Incidents"),
    ("key.", "Keys"),
)


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the entries, newest first."""
    kind = request.GET.get("kind", "")
    kind = kind if kind in dict(KINDS) else ""
    actor = request.GET.get("actor", "")[:150].replace("\x00", "")
    before = request.GET.get("before", "")
    found = dashboard.audit_page(
        request.project.pk,
        before=int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None,
        action=kind,
        actor=actor,
    )
    context = {
        "entries": [(entry, changes_of(entry)[:12]) for entry in found.entries],
        "next_before": found.next_before,
        "kinds": [(value, words, value == kind) for value, words in KINDS],
        "kind": kind,
        "actor": actor,
        "is_first_page": not before,
    }
    return render(request, "console/audit.html", context)
