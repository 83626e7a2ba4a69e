"""Route of the traffic through the gateway."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.gateway_traffic import TrafficQuerySchema, TrafficSchema
from detection.selectors.gateway_traffic import MINUTES_SPAN, TOKEN_KINDS, TrafficNumbers, gateway_traffic

router = Router(tags=["gateway"])
DEFAULT_SPAN = timedelta(hours=1)
MAX_SPANS = {"minute": MINUTES_SPAN, "hour": timedelta(days=40)}
MAX_SPAN = timedelta(days=400)


def _document(numbers: TrafficNumbers) -> dict[str, Any]:
    return {
        "requests": numbers.requests,
        "errors": numbers.errors,
        "abandoned": numbers.abandoned,
        **{kind: getattr(numbers, kind) for kind in TOKEN_KINDS},
        "cost_usd": numbers.cost_usd,
        "added_ms_p50": numbers.added_ms_at(0.5),
        "added_ms_p95": numbers.added_ms_at(0.95),
    }


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
            "total": _document(report.total),
            "items": [{"key": row.key, **_document(row.numbers)} for row in report.rows],
        }
    )
