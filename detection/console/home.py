"""Start pages: Connect until the first event has arrived, the live page afterwards."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.models import Membership
from detection.services.projects.projects import may_create_projects

LAST_PROJECT = "last_project"


def icon(request: HttpRequest) -> HttpResponse:
    """Redirect `/favicon.ico` to the icon."""
    return redirect(static("icon.svg"), permanent=True)


@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Redirect to the project opened last, or else to the first one."""
    rows = (
        Membership.objects.filter(user_id=request.user.pk or 0)
        .select_related("project")
        .order_by(F("project__archived_at").asc(nulls_first=True), "project__name")
    )
    last = request.session.get(LAST_PROJECT)
    membership = (rows.filter(project__slug=last).first() if last else None) or rows.first()
    if membership is None:
        context = {"may_create": may_create_projects(request.user)}
        return render(request, "console/no_project.html", context)
    return redirect("console:project", membership.project.slug)


@in_project()
@require_safe
def project(request: ProjectRequest) -> HttpResponse:
    """Redirect to the live page, or to Connect while there are no events."""
    request.session[LAST_PROJECT] = request.project.slug
    return redirect(
        "console:live" if request.project.first_event_at else "console:connect", request.project.slug
    )
