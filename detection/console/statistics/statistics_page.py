"""The Statistics page: checks, loops and costs over time, by detector, tool and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.list_export import export_of
from detection.console.listing import Listing
from detection.console.statistics.statistics_links import Link, Links, group_terms
from detection.filtering import language
from detection.filtering.time_ranges import TimeRange
from detection.models import Project
from detection.models.incidents import LabelReason, ReactionOutcome
from detection.selectors.filters import ListQuery
from detection.selectors.lists import STATISTICS
from detection.selectors.rates import RateBy, RateRow, rates
from detection.selectors.statistics import By, Numbers, Row, statistics
from detection.selectors.statistics_rows import (
    Sessions,
    judged_incidents,
    sessions_behind,
)

GROUPS: tuple[tuple[By, str], ...] = (
    ("kind", "Detector"),
    ("tool", "Tool"),
    ("model", "Model"),
    ("backend", "Backend"),
)
RATES_BY: Mapping[By, RateBy] = {"kind": "detector", "tool": "tool", "model": "model"}
SHOWN_GROUPS, MORE_GROUPS = 25, 200
MAX_SPAN, MAX_HOURLY_SPAN = timedelta(days=900), timedelta(days=8)


@dataclass(frozen=True, slots=True)
class Point:
    """One hour or day of the charts and their table."""

    at: datetime
    numbers: Numbers


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show totals, two charts over time with their numbers, and one grouping."""
    project, now = request.project, timezone.now()
    by = _grouping(request)
    listing = Listing(request, STATISTICS, kept=("by", "groups"), default_range=_first_range(project, now))
    shown = MORE_GROUPS if request.GET.get("groups") == "more" else SHOWN_GROUPS
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    if listing.is_invalid:
        # Numbers of a part of the filter would look like those of the whole.
        listing.query = replace(listing.query, is_empty=True)
        return render(request, "statistics/invalid_filter.html", {"listing": listing})
    query, step = _whole_steps(listing, project, now)
    listing.files = (
        ("", f"By {dict(GROUPS)[by].lower()}: "),
        ("rows=steps&", f"By {step}: "),
    )
    found = statistics(project.pk, query, by, step=step)
    points = _filled(found.steps, query, step)
    links = Links(listing, query.range, project.slug)
    total, judged = found.total, judged_incidents(project.pk, query)
    rows, available = found.rows[:shown], min(len(found.rows), MORE_GROUPS)
    sessions = sessions_behind(project.pk, query, by, step, rows)
    context = {
        "listing": listing,
        "groups": [(listing.url(by=key), words, key == by) for key, words in GROUPS],
        "by": by,
        "by_words": dict(GROUPS)[by],
        "step": step,
        "zone": listing.zone_name,
        "date_format": "j M H:i" if step == "hour" else "j M Y",
        "total": total,
        # Calls cannot be counted under every filter, incidents can.
        "blocked": total.loop_calls_blocked if total.blocked is None else total.blocked,
        "labelled": total.true_loops + total.false_alarms,
        "ended": total.recovered + total.not_recovered,
        "points": points,
        "newest_points": [
            (
                point,
                _links_of(
                    links, point, _next(point.at, step, query.zone), sessions.steps if sessions else {}
                ),
            )
            for point in reversed(points)
            if point.numbers.checks or point.numbers.incidents
        ],
        "chart": _chart(points, listing.zone_name, links.of_chart()),
        "rows": [
            (
                row,
                links.of_numbers(row.numbers, *group_terms(by, row.parts))
                | links.of_calls(
                    sessions.groups.get(row.parts) if sessions else None, row.numbers, by, row.parts
                ),
            )
            for row in rows
        ],
        "links": links.of_numbers(total),
        "sessions": sessions and links.sessions(sessions.total.all),
        "group_count": len(found.rows),
        "is_cut": found.is_cut,
        "more": available if shown < available else 0,
        "more_url": listing.url(groups="more"),
        "has_calls": by != "kind" and total.checks is not None,
        "after_reactions": [
            (
                row.rung,
                row.share,
                [
                    (
                        getattr(row, outcome),
                        links.incidents(row.incidents.get(outcome, 0), f"reaction:{row.rung}_{outcome}"),
                    )
                    for outcome in ReactionOutcome.values
                ],
            )
            for row in found.after_reactions
        ],
        "judge": [
            (
                share,
                [
                    (number, links.incidents(judged.get(term, 0), term))
                    for suffix, number in (
                        ("", share.count),
                        ("_right", share.right),
                        ("_wrong", share.wrong),
                    )
                    for term in (f"judge:{share.outcome}{suffix}",)
                ],
                links.incidents(judged.get(f"judge:{share.outcome}", 0), f"judge:{share.outcome}"),
            )
            for share in found.judge
        ],
        "false_alarms": [
            (
                LabelReason(reason).label.partition(":")[0],
                links.incidents(count, f"label:false_alarm reason:{reason or 'none'}"),
            )
            for reason, count in found.false_alarms
        ],
        "rates": _rates(project.pk, query, by),
        "counted_at": found.counted_at,
        "without_demo": listing.with_terms(language.term("demo", "no"), without=("demo",)),
    }
    return render(request, "statistics/page.html", context)


@in_project()
@require_safe
def export(request: ProjectRequest) -> HttpResponseBase:
    """Return the groups as a file, or with `rows=steps` the hours or days."""
    project, now = request.project, timezone.now()
    listing = Listing(request, STATISTICS, default_range=_first_range(project, now))
    listing.query, step = _whole_steps(listing, project, now)
    return export_of(request, listing, by=step if request.GET.get("rows") == "steps" else _grouping(request))


def _grouping(request: ProjectRequest) -> By:
    return next((value for value, _ in GROUPS if value == request.GET.get("by")), GROUPS[0][0])


def _first_range(project: Project, now: datetime) -> str:
    """Return the default range: a week, or a day on the first day of a project."""
    began = project.first_event_at
    return "24h" if began is not None and now - began < timedelta(hours=24) else "7d"


def _whole_steps(listing: Listing, project: Project, now: datetime) -> tuple[ListQuery, By]:
    """Return the query with both ends of its range, from the beginning of an hour or day on, and which of the two."""
    start, end = listing.range.start or project.created_at, min(listing.range.end or now, now)
    start = max(min(start, end), end - MAX_SPAN)
    step: By = "hour" if end - start <= MAX_HOURLY_SPAN else "day"
    start = start.astimezone(listing.zone).replace(minute=0, second=0, microsecond=0)
    start = start.replace(hour=0) if step == "day" else start
    whole = TimeRange("", start.astimezone(UTC), end)
    return replace(listing.query, range=whole), step


def _next(moment: datetime, step: By, zone: tzinfo) -> datetime:
    """Return the beginning of the next hour, or of the next day of the zone."""
    if step == "hour":
        return moment + timedelta(hours=1)
    own = moment.astimezone(zone).replace(tzinfo=None) + timedelta(days=1)
    return own.replace(tzinfo=zone).astimezone(UTC)


def _rates(project_id: int, query: ListQuery, by: By) -> list[RateRow]:
    """Return the rates of the range by what the page groups by; none under a filter, which they do not have."""
    start, end = query.range.start, query.range.end
    kept = [term for term in query.terms if term != language.term("demo", "no")]
    if kept or query.is_empty or start is None or end is None or by not in RATES_BY:
        return []
    return rates([project_id], start, end, RATES_BY[by], with_demo=not query.terms)[:SHOWN_GROUPS]


def _links_of(
    links: Links, point: Point, end: datetime, sessions: Mapping[datetime, Sessions]
) -> dict[str, Link]:
    """Return the links of one hour or day, which may end now."""
    start, found = point.at, sessions.get(point.at)
    of = {"incidents": links.incidents(point.numbers.incidents, start=start, end=end)}
    if found is not None:
        of["checks"] = links.sessions(found.all, start=start, end=end)
        of["blocked"] = links.sessions(found.blocked, "blocked:>0", start=start, end=end)
        of["warned"] = links.sessions(found.warned, "warned:>0", start=start, end=end)
        of["cost"] = links.sessions(found.all, sort="-cost", start=start, end=end)
    return of


def _filled(rows: tuple[Row, ...], query: ListQuery, step: By) -> list[Point]:
    """Return a point for every step, so that an hour without calls is drawn as zero."""
    known = {datetime.fromisoformat(row.key): row.numbers for row in rows}
    start, end = query.range.start, query.range.end
    points: list[Point] = []
    while start is not None and end is not None and start < end:
        numbers = known.get(start) or Numbers(checks=0, warned=0, blocked=0, token_count=0, cost_usd=0.0)
        points.append(Point(start, numbers))
        start = _next(start, step, query.zone)
    return points


def _chart(points: list[Point], zone: str, urls: dict[str, str]) -> dict[str, Any]:
    return {
        "zone": zone,
        "urls": urls,
        "at": [int(point.at.timestamp()) for point in points],
        "checks": [point.numbers.checks or 0 for point in points],
        "warned": [point.numbers.warned or 0 for point in points],
        "blocked": [point.numbers.blocked or 0 for point in points],
        "incidents": [point.numbers.incidents for point in points],
    }
