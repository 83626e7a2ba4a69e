"""Route of the search in contents."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response
from detection.api.schemas.search import SearchPageSchema, SearchQuerySchema
from detection.selectors.row_fields import document_of
from detection.selectors.search import search as find
from detection.services.search import records

router = Router(tags=["sessions"])


@router.get("/search", auth=READ, response={200: SearchPageSchema}, summary="Search contents")
def search(request: ApiRequest, query: Query[SearchQuerySchema]) -> HttpResponse:
    """Search arguments, results, messages, and the names of tools, sessions, agents and models.

    A page without hits that has a cursor is not the last one: the search continues where its time was over.
    """
    check_parameters(request, SearchQuerySchema)
    project_id = request.principal.project_id
    page = find(project_id, query.q, query.cursor, query.limit, query.seconds, is_by_session=query.by_session)
    if not query.cursor:
        records.record_search(project_id, actor_of(request), len(page.items))
    return json_response(document_of(page))
