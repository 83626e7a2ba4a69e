"""The page of quarantined events: their errors and tracebacks, and the retry."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods

from detection.console import permalinks
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.models import Role
from detection.selectors.pages import BadCursor, Page
from detection.selectors.quarantine import list_quarantined, quarantine_counts
from detection.services.errors import NotFound
from detection.services.sessions import quarantine as service


@in_project(write_role=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """List quarantined events, or retry one, those of a session, or all."""
    if request.method == "POST":
        return _retry(request)
    project, session = request.project, request.GET.get("session", "")[:256]
    try:
        found = list_quarantined(project.pk, session, request.GET.get("cursor", ""))
    except BadCursor:
        found = Page((), None)
    context = {
        "rows": [(row, permalinks.session_url(project.slug, row.session.external_id)) for row in found.items],
        "next_cursor": found.next_cursor,
        "counts": quarantine_counts(project.pk),
        "session": session,
    }
    return render(request, "integrations/quarantine.html", context)


def _retry(request: ProjectRequest) -> HttpResponse:
    project_id, actor = request.project.pk, actor_of(request)
    session, seq = request.POST.get("session", ""), request.POST.get("seq", "")
    try:
        if session:
            is_number = seq.isascii() and seq.isdigit() and len(seq) < 10
            result = service.retry(project_id, session, actor, [int(seq)] if is_number else None)
        else:
            result = service.retry_all(project_id, actor)
    except NotFound:
        messages.error(request, "The event is no longer quarantined.")
    else:
        words = [f"{result.evaluated:,} evaluated", f"{result.failed:,} failed again"]
        if result.expired:
            words.append(f"{result.expired:,} too old or without payload, removed from the list")
        note = messages.error if result.failed else messages.success
        note(request, f"Events retried: {', '.join(words)}.")
    address = reverse("console:quarantine", args=[request.project.slug])
    shown = request.POST.get("shown", "")
    return HttpResponseRedirect(f"{address}?{urlencode({'session': shown})}" if shown else address)
