"""Completions of the filter language: the fields of a list, and the values in its newest rows."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.filtering.language import FilterError
from detection.selectors.filters import FilterField, complete
from detection.selectors.lists import LISTS


@in_project()
@require_safe
def filter_values(request: ProjectRequest, name: str) -> HttpResponse:
    """Return the fields of a list or, with `field` in the query, values of that field that contain `text`."""
    spec = LISTS.get(name)
    if spec is None:
        raise Http404
    if "field" not in request.GET:
        return JsonResponse({"fields": [_described(one) for one in spec.fields]})
    rows = spec.model._default_manager.filter(project_id=request.project.pk)
    try:
        values = complete(spec, rows, request.GET.get("field", "")[:40], request.GET.get("text", "")[:256])
    except FilterError as error:
        raise Http404 from error
    return JsonResponse({"values": values}, headers={"Cache-Control": "private, no-store"})


def _described(field: FilterField) -> dict[str, Any]:
    return {
        "name": field.name,
        "help": field.help,
        "values": [[choice.value, choice.words] for choice in field.choices],
        "completes": field.type == "text" and field.completes,
    }
