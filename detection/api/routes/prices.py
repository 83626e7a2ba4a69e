"""Routes of the price table."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Body, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response, list_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.gateway_traffic import PriceRequestSchema, PriceSchema, RecalculationSchema
from detection.api.versions import CONDITIONAL, CONDITIONAL_PUT, expected_version, with_version
from detection.selectors.prices import list_prices, recalculation
from detection.selectors.row_fields import document_of
from detection.services.gateway import prices

router = Router(tags=["gateway"])


@router.get("/prices", auth=READ, response={200: PageSchema[PriceSchema]}, summary="List prices")
def list_model_prices(request: ApiRequest) -> HttpResponse:
    """List the prices of models by backend and model."""
    return list_response(document_of(row, PriceSchema) for row in list_prices(request.principal.project_id))


@router.get(
    "/prices/recalculation",
    auth=READ,
    response={200: RecalculationSchema},
    summary="Get the recalculation of imported calls",
)
def get_recalculation(request: ApiRequest) -> HttpResponse:
    """Get how far the costs of imported calls follow the latest change of a price."""
    row = recalculation(request.principal.project_id)
    never = RecalculationSchema(
        requested_at=None, finished_at=None, sessions=0, done_sessions=0, changed_sessions=0
    )
    return json_response(document_of(row, RecalculationSchema) if row else never.dict())


@router.put(
    "/prices",
    auth=ADMIN_WITH_BODY,
    response={200: PriceSchema},
    summary="Update a price",
    openapi_extra=CONDITIONAL_PUT,
)
def save_price(request: ApiRequest, body: Body[PriceRequestSchema]) -> HttpResponse:
    """Create or replace the price of a backend and model.

    It takes effect with the next model response. Imported calls whose record had no cost are recalculated.
    """
    version = expected_version(request)
    row = prices.save_price(request.principal.project_id, actor_of(request), version=version, **body.dict())
    return with_version(json_response(document_of(row, PriceSchema)), prices.price_version(row))


@router.delete(
    "/prices/{price_id}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a price",
    openapi_extra=CONDITIONAL,
)
def delete_price(request: ApiRequest, price_id: str) -> HttpResponse:
    """Delete a price. Costs of its models are then unknown, also of imported calls, unless another price matches."""
    prices.delete_price(*target(request, price_id), version=expected_version(request))
    return empty_response()
