"""Routes of erasures: a session, or all sessions of an agent, are removed everywhere."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN_WITH_BODY, READ
from detection.api.pages import page_response
from detection.api.query_parameters import existing, existing_name, session_name
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.erasures import (
    ErasureQuerySchema,
    ErasureRequestSchema,
    ErasureSchema,
    SessionErasuresRequestSchema,
    SessionErasuresSchema,
)
from detection.selectors import erasures as selector
from detection.selectors.row_fields import document_of
from detection.services.retention import erasure

router = Router(tags=["sessions"])
_document = partial(document_of, kind=selector.ErasureRow)


@router.post("/erasures", auth=ADMIN_WITH_BODY, response={202: ErasureSchema}, summary="Create an erasure")
def create_erasure(request: ApiRequest, body: Body[ErasureRequestSchema]) -> HttpResponse:
    """Erase a session, or all sessions of an agent, with everything recorded about them.

    This cannot be undone. A worker starts within a second; the erasure serves as the receipt. One that has failed is
    tried again.
    """
    of = "session" if body.session else "agent"
    name = (
        session_name(request, body.session) if body.session else request.principal.redactor.name(body.agent)
    )
    row = erasure.request_erasure(request.principal.project_id, of, name, actor_of(request))
    return json_response(_document(row), 202)


@router.post(
    "/erasures/sessions",
    auth=ADMIN_WITH_BODY,
    response={202: SessionErasuresSchema},
    summary="Create erasures of sessions",
)
def create_session_erasures(request: ApiRequest, body: Body[SessionErasuresRequestSchema]) -> HttpResponse:
    """Erase several sessions, such as those that `GET /search?by_session=true` has found. This cannot be undone.

    Each has its own receipt, because its name is forgotten with it.
    """
    names = [session_name(request, name) for name in body.sessions]
    found = erasure.request_erasures(request.principal.project_id, names, actor_of(request))
    items = [_document(row) for row in found.values() if row is not None]
    return json_response(
        {"items": items, "not_found": [name for name, row in found.items() if row is None]}, 202
    )


@router.get("/erasures", auth=READ, response={200: PageSchema[ErasureSchema]}, summary="List erasures")
def list_erasures(request: ApiRequest, query: Query[ErasureQuerySchema]) -> HttpResponse:
    """List the erasures of the project, newest first. Anyone who knows an erased name can find its receipt."""
    of = "session" if query.session else "agent"
    name = request.principal.redactor.name(query.session or query.agent)
    named = (of, name) if name else None
    return page_response(request, query, named, selector.list_erasures, _document)


@router.get("/erasures/{erasure_id}", auth=READ, response={200: ErasureSchema}, summary="Get an erasure")
def get_erasure(request: ApiRequest, erasure_id: str) -> HttpResponse:
    """Get an erasure: whether it is finished, and what was removed."""
    row = existing(selector.find_erasure(request.principal.project_id, existing_name(erasure_id)))
    return json_response(_document(row))
