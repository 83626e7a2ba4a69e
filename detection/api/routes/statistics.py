"""Routes of the statistics."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.http import HttpResponse
from django.utils import timezone
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.pages import query_of
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.statistics import (
    AfterReactionsQuerySchema,
    AfterReactionsSchema,
    StatisticsQuerySchema,
    StatisticsSchema,
    TimeSpanSchema,
)
from detection.filtering.time_ranges import TimeRange
from detection.selectors.filters import ListQuery
from detection.selectors.lists import STATISTICS
from detection.selectors.row_fields import document_of
from detection.selectors.statistics import after_reactions, statistics

router = Router(tags=["statistics"])
DEFAULT_SPAN, MAX_SPAN, MAX_HOURLY_SPAN = timedelta(days=7), timedelta(days=400), timedelta(days=40)


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
    start, end = _span(query, MAX_HOURLY_SPAN if query.by == "hour" else MAX_SPAN)
    by = None if query.by == "total" else query.by
    wanted = _wanted(request, query, start, end)
    found = statistics(request.principal.project_id, wanted, by)
    return json_response(
        {
            "from": start.isoformat(),
            "to": end.isoformat(),
            "by": query.by,
            "counted_at": found.counted_at.isoformat() if found.counted_at else None,
            "total": document_of(found.total),
            "items": [row.as_document() for row in found.rows],
            "after_reactions": [document_of(row) for row in found.after_reactions],
            "false_alarms": [
                {"reason": reason or None, "count": count} for reason, count in found.false_alarms
            ],
            "judge": [document_of(share) for share in found.judge],
            "is_cut": found.is_cut,
        }
    )


@router.get(
    "/statistics/after-reactions",
    auth=READ,
    response={200: AfterReactionsSchema},
    by_alias=True,
    summary="Get what agents did after reactions",
)
def get_after_reactions(request: ApiRequest, query: Query[AfterReactionsQuerySchema]) -> HttpResponse:
    """Return how often agents changed course, continued, left it to a person or ended after each reaction."""
    check_parameters(request, AfterReactionsQuerySchema)
    start, end = _span(query, MAX_SPAN)
    by = None if query.by == "total" else query.by
    rows = after_reactions(request.principal.project_id, _wanted(request, query, start, end), by)
    return json_response(
        {
            "from": start.isoformat(),
            "to": end.isoformat(),
            "by": query.by,
            "items": [document_of(row) for row in rows],
        }
    )


def _span(query: TimeSpanSchema, longest: timedelta) -> tuple[datetime, datetime]:
    end = query.to or timezone.now()
    start = query.from_ or end - DEFAULT_SPAN
    if not start < end or end - start > longest:
        words = f"`from` must be before `to`, by at most {longest.days} days."
        raise Problem(422, "invalid_span", words, path="from")
    return start, end


def _wanted(request: ApiRequest, query: TimeSpanSchema, start: datetime, end: datetime) -> ListQuery:
    names = {} if query.demo else {"demo": "demo"}
    return query_of(request, STATISTICS, query, names, range=TimeRange("", start, end))
