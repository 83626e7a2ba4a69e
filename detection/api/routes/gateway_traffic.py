"""Route of the traffic through the gateway."""

from __future__ import annotations

from datetime import timedelta

from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.gateway_traffic import (
    TrafficNumbersSchema,
    TrafficQuerySchema,
    TrafficRowSchema,
    TrafficSchema,
)
from detection.selectors.gateway_traffic import MINUTES_SPAN, gateway_traffic
from detection.selectors.row_fields import document_of

router = Router(tags=["gateway"])
DEFAULT_SPAN = timedelta(hours=1)
MAX_SPANS = {"minute": MINUTES_SPAN, "hour": timedelta(days=40)}
MAX_SPAN = timedelta(days=400)


@router.get(
    "/gateway/traffic",
    auth=READ,
    response={200: TrafficSchema},
    by_alias=True,
    summary="Get traffic",
)
def get_gateway_traffic(request: ApiRequest, query: Query[TrafficQuerySchema]) -> HttpResponse:
    """Return requests, errors, tokens, cost and added time of the gateway's backends. Minutes are kept for two days."""
    check_parameters(request, TrafficQuerySchema)
    end = query.to or timezone.now()
    start = query.from_ or end - DEFAULT_SPAN
    longest = MAX_SPANS.get(query.by, MAX_SPAN)
    if not start < end or end - start > longest:
        detail = f"`from` must be before `to`, by at most {longest.total_seconds() / 3600:,.0f} hours."
        raise Problem(422, "invalid_span", detail, path="from")
    report = gateway_traffic(request.principal.project_id, start, end, query.by, query.backend)
    return json_response(
        {
            "from": start.isoformat(),
            "to": end.isoformat(),
            "by": query.by,
            "total": document_of(report.total, TrafficNumbersSchema),
            "items": [document_of(row.numbers, TrafficRowSchema, key=row.key) for row in report.rows],
        }
    )
