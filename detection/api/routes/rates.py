"""Routes of rates per 1,000 calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.rates import (
    PeriodSchema,
    RateComparisonQuerySchema,
    RateComparisonSchema,
    RatesQuerySchema,
    RatesSchema,
)
from detection.selectors.rates import compare_rates, rates
from detection.selectors.row_fields import document_of

router = Router(tags=["statistics"])
DEFAULT_PERIOD, LONGEST_PERIOD = timedelta(days=7), timedelta(days=400)
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
MAX_ROWS: Final = 1_000


@router.get(
    "/rates", auth=READ, response={200: RatesSchema}, by_alias=True, summary="Get rates per 1,000 calls"
)
def get_rates(request: ApiRequest, query: Query[RatesQuerySchema]) -> HttpResponse:
    """Return loops and costs per 1,000 calls with 95 % intervals, and those of the period of the same length before.

    Counted are the sessions whose last event is in the period, with all their calls and loops.
    """
    check_parameters(request, RatesQuerySchema)
    start, end = _ends(query)
    rows = rates([request.principal.project_id], start, end, query.by, with_demo=query.demo)
    return json_response(
        {
            "from": start.isoformat(),
            "to": end.isoformat(),
            "by": query.by,
            "items": [document_of(row) for row in rows[:MAX_ROWS]],
        }
    )


@router.get(
    "/rates/comparison", auth=READ, response={200: RateComparisonSchema}, summary="Get a comparison of rates"
)
def get_rate_comparison(request: ApiRequest, query: Query[RateComparisonQuerySchema]) -> HttpResponse:
    """Compare how often two agents, models, tools, detectors or integrations loop: their ratio with an interval."""
    check_parameters(request, RateComparisonQuerySchema)
    start, end = _ends(query)
    if query.tools == "shared" and query.by not in ("agent", "model", "integration"):
        raise Problem(422, "invalid_tools", "Only agents, models and integrations share tools.", path="tools")
    name = request.principal.redactor.name
    found = compare_rates(
        [request.principal.project_id],
        start,
        end,
        query.by,
        name(query.first),
        name(query.second),
        on_shared_tools=query.tools == "shared",
    )
    return json_response(document_of(found))


def _ends(query: PeriodSchema) -> tuple[datetime, datetime]:
    end = query.to or timezone.now()
    start = query.from_ or end - DEFAULT_PERIOD
    if not start < end or end - start > LONGEST_PERIOD or start < EARLIEST:
        raise Problem(
            422,
            "invalid_span",
            f"`from` must be before `to`, by at most {LONGEST_PERIOD.days} days, and after 1999.",
            path="from",
        )
    return start, end
