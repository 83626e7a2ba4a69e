"""Routes of saved views: filters of lists under names, shared in the project."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import check_parameters, existing_name
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response, list_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.saved_views import (
    RenameViewRequestSchema,
    ViewQuerySchema,
    ViewRequestSchema,
    ViewSchema,
)
from detection.models import SavedView
from detection.selectors.row_fields import document_of
from detection.selectors.saved_views import list_views
from detection.services import saved_views as services

router = Router(tags=["views"])
_PAGES = {"sessions": "live", "notifications": "alerts"}
"""Pages of the console whose names are not those of their lists."""


def _document(request: ApiRequest, view: SavedView) -> dict[str, object]:
    page = f"{settings.PUBLIC_URL}/p/{request.principal.project_slug}/{_PAGES.get(view.list, view.list)}"
    links = {"view": f"{page}?{view.query}" if view.query else page}
    return document_of(view, ViewSchema, **services.fields_of(view), links=links)


@router.get("/views", auth=READ, response={200: PageSchema[ViewSchema]}, summary="List saved views")
def list_saved_views(request: ApiRequest, query: Query[ViewQuerySchema]) -> HttpResponse:
    """List the saved views of the project by list and name, at most 50 for each list."""
    check_parameters(request, ViewQuerySchema)
    return list_response(
        _document(request, row) for row in list_views(request.principal.project_id, query.list)
    )


@router.put("/views", auth=ADMIN_WITH_BODY, response={200: ViewSchema}, summary="Update a saved view")
def save_view(request: ApiRequest, body: Body[ViewRequestSchema]) -> HttpResponse:
    """Save a filter, range and order under a name. An existing view of the list with this name is replaced."""
    query = services.view_query(body.list, body.q, body.range, body.sort)
    view = services.save_view(request.principal.project_id, body.list, body.name, query, actor_of(request))
    return json_response(_document(request, view))


@router.patch(
    "/views/{view_id}", auth=ADMIN_WITH_BODY, response={200: ViewSchema}, summary="Update the name of a view"
)
def rename_view(request: ApiRequest, view_id: str, body: Body[RenameViewRequestSchema]) -> HttpResponse:
    """Rename a view. Links to it stay valid: its address contains the filter, not the name."""
    project_id, name, actor = request.principal.project_id, existing_name(view_id), actor_of(request)
    return json_response(_document(request, services.rename_view(project_id, name, body.name, actor)))


@router.delete("/views/{view_id}", auth=ADMIN, response={204: None}, summary="Delete a saved view")
def delete_view(request: ApiRequest, view_id: str) -> HttpResponse:
    """Delete a view for all members of the project."""
    project_id, name, actor = request.principal.project_id, existing_name(view_id), actor_of(request)
    services.delete_view(project_id, name, actor)
    return empty_response()
