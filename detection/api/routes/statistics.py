"""Route of the statistics."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.pages import query_of
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.statistics import StatisticsQuerySchema, StatisticsSchema
from detection.filtering.time_ranges import TimeRange
from detection.selectors.lists import STATISTICS
from detection.selectors.row_fields import document_of
from detection.selectors.statistics import statistics

router = Router(tags=["statistics"])
DEFAULT_SPAN, MAX_SPAN, MAX_HOURLY_SPAN = timedelta(days=7), timedelta(days=400), timedelta(days=40)
By = Literal["total", "hour", "day", "kind", "tool", "model", "backend"]


@router.get(
    "/statistics",
    auth=READ,
    response={200: StatisticsSchema},
    by_alias=True,
    summary="Get statistics",
)
def get_statistics(request: ApiRequest, query: Query[StatisticsQuerySchema]) -> HttpResponse:
    """Return totals and groups of a time span. Calls are counted in whole hours that begin within it."""
    check_parameters(request, StatisticsQuerySchema)
    end = query.to or timezone.now()
    start = query.from_ or end - DEFAULT_SPAN
    longest = MAX_HOURLY_SPAN if query.by == "hour" else MAX_SPAN
    if not start < end or end - start > longest:
        raise Problem(
            422,
            "invalid_span",
            f"`from` must be before `to`, by at most {longest.days} days.",
            path="from",
        )
    by = None if query.by == "total" else query.by
    names = {} if query.demo else {"demo": "demo"}
    wanted = query_of(request, STATISTICS, query, names, range=TimeRange("", start, end))
    found = statistics(request.principal.project_id, wanted, by)
    return json_response(
        {
            "from": start.isoformat(),
            "to": end.isoformat(),
            "by": query.by,
            "counted_at": found.counted_at.isoformat() if found.counted_at else None,
            "total": document_of(found.total),
            "items": [row.as_document() for row in found.rows],
            "recovery": [document_of(row) for row in found.recovery],
            "false_alarms": [
                {"reason": reason or None, "count": count} for reason, count in found.false_alarms
            ],
            "judge": [document_of(share) for share in found.judge],
            "is_cut": found.is_cut,
        }
    )
