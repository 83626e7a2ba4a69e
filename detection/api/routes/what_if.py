"""Routes of what-ifs: a policy change is tried on recorded sessions before it is saved."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.pages import page_response
from detection.api.query_parameters import existing, existing_name, session_name, target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.what_if import WhatIfQuerySchema, WhatIfRequestSchema, WhatIfSchema
from detection.api.setting_errors import setting_errors
from detection.models import WhatIf
from detection.selectors import what_ifs as selector
from detection.services.what_if import changes, what_ifs

router = Router(tags=["settings"])


def _document(request: ApiRequest, row: WhatIf, *, with_items: bool = True) -> dict[str, object]:
    page = f"{settings.PUBLIC_URL}/p/{request.principal.project_slug}/policies/what-ifs/{row.public_id}"
    return {**selector.as_document(row, with_items=with_items), "links": {"what_if": page}}


@router.post("/what-if", auth=ADMIN_WITH_BODY, response={202: WhatIfSchema}, summary="Create a what-if")
def create_what_if(request: ApiRequest, body: Body[WhatIfRequestSchema]) -> HttpResponse:
    """Try a change on the sessions of the past days. A worker replays them under the current and the changed policy."""
    project_id = request.principal.project_id
    with setting_errors("values", body.values):
        given = body.model_dump(exclude={"days"}) | {"session": session_name(request, body.session)}
        change = changes.check(project_id, **given)
    row = what_ifs.create_what_if(project_id, change, actor_of(request), days=body.days)
    return json_response(_document(request, row), 202)


@router.get("/what-if", auth=READ, response={200: PageSchema[WhatIfSchema]}, summary="List what-ifs")
def list_what_ifs(request: ApiRequest, query: Query[WhatIfQuerySchema]) -> HttpResponse:
    """List the what-ifs of the project, newest first; incidents are only in the response for a single what-if."""
    return page_response(
        request, query, None, selector.list_what_ifs, lambda row: _document(request, row, with_items=False)
    )


@router.get("/what-if/{what_if_id}", auth=READ, response={200: WhatIfSchema}, summary="Get a what-if")
def get_what_if(request: ApiRequest, what_if_id: str) -> HttpResponse:
    """Get a what-if: its progress and its results so far."""
    row = existing(selector.find_what_if(request.principal.project_id, existing_name(what_if_id)))
    return json_response(_document(request, row))


@router.post(
    "/what-if/{what_if_id}/cancel", auth=ADMIN, response={200: WhatIfSchema}, summary="Cancel a what-if"
)
def cancel_what_if(request: ApiRequest, what_if_id: str) -> HttpResponse:
    """Cancel a what-if that is waiting or running. Its results so far are kept."""
    return json_response(_document(request, what_ifs.cancel_what_if(*target(request, what_if_id))))
