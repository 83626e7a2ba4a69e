"""Start pages: Connect until the first event has arrived, Now afterwards."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from detection.console.access import LAST_PROJECT, ProjectRequest, in_project, last_opened
from detection.services.projects.projects import may_create_projects


def icon(request: HttpRequest) -> HttpResponse:
    """Redirect `/favicon.ico` to the icon."""
    return redirect(static("icon.svg"), permanent=True)


@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Redirect to the project opened last, or else to the first one."""
    membership = last_opened(request)
    if membership is None:
        context = {"may_create": may_create_projects(request.user)}
        return render(request, "console/no_project.html", context)
    return redirect("console:project", membership.project.slug)


@in_project()
@require_safe
def project(request: ProjectRequest) -> HttpResponse:
    """Redirect to Now, or to Connect while there are no events."""
    request.session[LAST_PROJECT] = request.project.slug
    return redirect(
        "console:now" if request.project.first_event_at else "console:connect", request.project.slug
    )
