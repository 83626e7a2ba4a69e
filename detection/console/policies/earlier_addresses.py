"""Earlier addresses of pages about policies, which lead for good to where their content is now."""

from __future__ import annotations

from typing import Final

from django.http import HttpResponse, HttpResponsePermanentRedirect
from django.urls import reverse
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project

_PLACES: Final = {
    "policies/tool-rule": ("tool_rules", ""),
    "policies/what-if": ("what_ifs", ""),
    "policies/suggestions": ("policies", "#suggestions"),
    "policies/exceptions": ("policies", "#fine"),
    "message-templates": ("message_templates", ""),
}


@in_project()
@require_safe
def page(request: ProjectRequest, public_id: str = "") -> HttpResponse:
    """Lead to the page that has the content of an earlier one, with its query."""
    if public_id:
        return HttpResponsePermanentRedirect(
            reverse("console:what_if", args=[request.project.slug, public_id])
        )
    path = request.path.removeprefix(f"/p/{request.project.slug}/")
    name, place = _PLACES[path]
    query = request.META["QUERY_STRING"]
    # A new rule had no name of its own.
    query = query or ("new=" if path == "policies/tool-rule" else "")
    target = reverse(f"console:{name}", args=[request.project.slug])
    return HttpResponsePermanentRedirect(f"{target}{'?' if query else ''}{query}{place}")
