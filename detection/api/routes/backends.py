"""Routes of the gateway's backends and tokens."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Body, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.problems import Problem
from detection.api.query_parameters import existing_name, target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response, list_response
from detection.api.schemas.backends import (
    BackendRequestSchema,
    BackendSchema,
    BackendTestSchema,
    BackendUpdateSchema,
    CreatedGatewayTokenSchema,
    GatewayTokenRequestSchema,
    GatewayTokenSchema,
)
from detection.api.schemas.common import PageSchema
from detection.api.versions import CONDITIONAL, expected_version, with_version
from detection.models import GatewayBackend
from detection.selectors.gateway import gateway_url, list_backends, list_tokens
from detection.selectors.row_fields import document_of
from detection.services.gateway import backends as service

router = Router(tags=["gateway"])


def _response(row: GatewayBackend, status: int = 200) -> HttpResponse:
    document = document_of(row, BackendSchema)
    return with_version(json_response(document, status), str(document["version"]))


@router.get("/backends", auth=READ, response={200: PageSchema[BackendSchema]}, summary="List backends")
def list_gateway_backends(request: ApiRequest) -> HttpResponse:
    """List the backends of the gateway."""
    return list_response(
        document_of(row, BackendSchema) for row in list_backends(request.principal.project_id)
    )


@router.post("/backends", auth=ADMIN_WITH_BODY, response={201: BackendSchema}, summary="Create a backend")
def create_backend(request: ApiRequest, body: Body[BackendRequestSchema]) -> HttpResponse:
    """Create a backend of the gateway. Its address must be under one that the deployment allows."""
    row = service.create_backend(request.principal.project_id, actor_of(request), **body.dict())
    return _response(row, 201)


@router.patch(
    "/backends/{backend_id}",
    auth=ADMIN_WITH_BODY,
    response={200: BackendSchema},
    summary="Update a backend",
    openapi_extra=CONDITIONAL,
)
def update_backend(request: ApiRequest, backend_id: str, body: Body[BackendUpdateSchema]) -> HttpResponse:
    """Change a backend. Takes effect within a second."""
    values = body.dict(exclude_unset=True)
    for name, value in values.items():
        if value is None:
            raise Problem(422, "invalid_type", f"`{name}` must not be null.", path=name)
    row = service.update_backend(*target(request, backend_id), version=expected_version(request), **values)
    return _response(row)


@router.delete(
    "/backends/{backend_id}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a backend",
    openapi_extra=CONDITIONAL,
)
def delete_backend(request: ApiRequest, backend_id: str) -> HttpResponse:
    """Delete a backend with its tokens."""
    service.delete_backend(*target(request, backend_id), version=expected_version(request))
    return empty_response()


@router.post(
    "/backends/{backend_id}/test",
    auth=ADMIN,
    response={200: BackendTestSchema},
    summary="Test a backend",
)
def test_backend(request: ApiRequest, backend_id: str) -> HttpResponse:
    """Request the models of a backend, and wait up to a few seconds for the response."""
    result = service.test_backend(*target(request, backend_id))
    return json_response({"is_success": result.is_success, "status": result.status, "detail": result.detail})


@router.get(
    "/backends/{backend_id}/tokens",
    auth=READ,
    response={200: PageSchema[GatewayTokenSchema]},
    summary="List tokens",
)
def list_gateway_tokens(request: ApiRequest, backend_id: str) -> HttpResponse:
    """List the tokens of a backend, without their secrets."""
    backend = service.find_backend(request.principal.project_id, existing_name(backend_id))
    return list_response(document_of(row, GatewayTokenSchema) for row in list_tokens(backend))


@router.post(
    "/backends/{backend_id}/tokens",
    auth=ADMIN_WITH_BODY,
    response={201: CreatedGatewayTokenSchema},
    summary="Create a token",
)
def create_gateway_token(
    request: ApiRequest, backend_id: str, body: Body[GatewayTokenRequestSchema]
) -> HttpResponse:
    """Create a token for the path of a base URL.

    It works for this backend only. Only this response contains the token.
    """
    row, token = service.create_token(*target(request, backend_id), name=body.name)
    created = {"token": token, "gateway_url": gateway_url(row.backend.name, token)}
    return json_response(document_of(row, GatewayTokenSchema) | created, 201)


@router.delete(
    "/backends/{backend_id}/tokens/{token_id}",
    auth=ADMIN,
    response={204: None},
    summary="Revoke a token",
)
def revoke_gateway_token(request: ApiRequest, backend_id: str, token_id: str) -> HttpResponse:
    """Revoke a token. It stops working within a second."""
    project_id, public_id, actor = target(request, backend_id)
    service.revoke_token(project_id, public_id, existing_name(token_id), actor)
    return empty_response()
