"""Forms of saved views; every list shows its views."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.models import Role
from detection.services import saved_views as service
from detection.services.errors import ServiceError


@in_project(Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Save, rename or delete a view, and return to the list."""
    project_id, form, actor = request.project.pk, request.POST, actor_of(request)
    action, public_id, name = form.get("action", ""), form.get("id", "")[:64], form.get("name", "")
    try:
        if action == "rename":
            service.rename_view(project_id, public_id, name, actor)
            done = "View renamed."
        elif action == "delete":
            service.delete_view(project_id, public_id, actor)
            done = "View deleted."
        else:
            service.save_view(project_id, form.get("list", "")[:32], name, form.get("query", ""), actor)
            done = "View saved. All members of the project see it."
        messages.success(request, done)
    except ServiceError as error:
        messages.error(request, error.detail)
    return HttpResponseRedirect(next_page(request, reverse("console:project", args=[request.project.slug])))
