"""Where a person lands: Connect until the first event came in, the live list from then on."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.models import Membership

LAST_PROJECT = "last_project"


def icon(request: HttpRequest) -> HttpResponse:
    """Send browsers that ask for an icon by its old name to ours."""
    return redirect(static("icon.svg"), permanent=True)


@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Go to the project that was open last, else to the first one."""
    rows = (
        Membership.objects.filter(user_id=request.user.pk or 0)
        .select_related("project")
        .order_by("project__name")
    )
    last = request.session.get(LAST_PROJECT)
    membership = (rows.filter(project__slug=last).first() if last else None) or rows.first()
    if membership is None:
        return render(request, "console/no_project.html")
    return redirect("console:project", membership.project.slug)


@in_project()
@require_safe
def project(request: ProjectRequest) -> HttpResponse:
    """Go to the page of this project that is of use now."""
    request.session[LAST_PROJECT] = request.project.slug
    return redirect(
        "console:live" if request.project.first_event_at else "console:connect", request.project.slug
    )
