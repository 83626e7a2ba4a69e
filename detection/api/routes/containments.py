"""Routes of containments: stop, hold or block everything of an agent, a model, a tool or a wider scope."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import check_parameters, target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response, list_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.containments import (
    ContainmentPreviewSchema,
    ContainmentQuerySchema,
    ContainmentRequestSchema,
    ContainmentSchema,
)
from detection.selectors import containments as selector
from detection.selectors.row_fields import document_of
from detection.services.containments import containments
from detection.services.containments.containments import Wanted

router = Router(tags=["containments"])
_document = partial(document_of, kind=selector.ContainmentRow)


@router.post(
    "/containments",
    auth=ADMIN_WITH_BODY,
    response={200: ContainmentSchema, 201: ContainmentSchema},
    summary="Contain everything of a scope",
)
def create_containment(
    request: ApiRequest, body: Body[ContainmentRequestSchema], query: Query[ContainmentPreviewSchema]
) -> HttpResponse:
    """Stop, hold or block every call of a scope until the containment is lifted.

    It is in force for each call that is evaluated after the response, wherever it comes in. Calls on hold end within a
    second. With `preview`, the response is 200 and nothing changes.
    """
    check_parameters(request, ContainmentPreviewSchema)
    principal = request.principal
    name = principal.redactor.name
    wanted = Wanted(
        body.scope,
        name(body.value),
        body.reaction,
        name(body.tool),
        body.reason,
        body.until,
        body.include_new,
    )
    if query.preview:
        return json_response(_document(containments.preview(principal.project_id, wanted)) | {"id": ""})
    row = containments.contain(principal.project_id, wanted, actor_of(request))
    return json_response(_document(row), 201)


@router.get(
    "/containments",
    auth=READ,
    response={200: PageSchema[ContainmentSchema]},
    summary="List containments",
)
def list_containments(request: ApiRequest, query: Query[ContainmentQuerySchema]) -> HttpResponse:
    """List the containments of the project, and those of the server, newest first."""
    check_parameters(request, ContainmentQuerySchema)
    rows = selector.list_containments(
        request.principal.project_id, limit=query.limit, is_in_force=query.in_force
    )
    return list_response(_document(row) for row in rows)


@router.delete(
    "/containments/{containment_id}",
    auth=ADMIN,
    response={200: ContainmentSchema},
    summary="Lift a containment",
)
def lift_containment(request: ApiRequest, containment_id: str) -> HttpResponse:
    """Lift a containment: calls are judged again, and calls that only it held may run. One of the server stays."""
    return json_response(_document(containments.lift(*target(request, containment_id))))
