"""Try an override or tool rule of the admin on the history, before it is saved or deleted."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from detection.admin.base import actor_of
from detection.engine.scopes import Scope
from detection.models import Membership, Project, Role
from detection.services.errors import Invalid
from detection.services.what_if import changes, what_ifs

ASKED = "try_on_history"
"""Name of the button in forms."""


def projects_of(request: HttpRequest, project_id: int | None) -> list[Project]:
    """Return the projects on whose history a change can be tried: the row's; for the server, all of the user's."""
    rows = Membership.objects.filter(user_id=request.user.pk or 0, role__in=(Role.OPERATOR, Role.ADMIN))
    rows = rows.filter(project__stores_payloads=True)
    if project_id is not None:
        rows = rows.filter(project_id=project_id)
    return [row.project for row in rows.select_related("project").order_by("project__name")[:100]]


def start(
    request: HttpRequest, project_id: int | None, scope: Scope, values: dict[str, Any], **facts: Any
) -> HttpResponse:
    """Create the what-if of a change, and show it in the console.

    Raises
    ------
    ServiceError
        For a value that is not allowed, or a project that cannot be replayed.
    """
    chosen, days = request.POST.get("history_of", ""), request.POST.get("days", "")
    for project in projects_of(request, project_id):
        if project_id is not None or str(project.pk) == chosen:
            change = changes.check(project.pk, str(scope), values, **facts)
            row = what_ifs.create_what_if(
                project.pk, change, actor_of(request), days=int(days) if days in ("7", "30") else 0
            )
            return redirect("console:what_if", project.slug, row.public_id)
    raise Invalid("Trying on history requires the operator role in a project that stores payloads.")
