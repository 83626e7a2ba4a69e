"""The Statistics page: checks, loops and costs over time, by detector, tool and model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.listing import Listing
from detection.filtering import language, time_ranges
from detection.filtering.language import Term
from detection.filtering.time_ranges import TimeRange
from detection.models import Project
from detection.models.incidents import LabelReason
from detection.selectors.filters import ListQuery
from detection.selectors.lists import INCIDENTS, STATISTICS
from detection.selectors.statistics import By, Numbers, Row, groups, statistics

GROUPS: tuple[tuple[By, str], ...] = (
    ("kind", "Detector"),
    ("tool", "Tool"),
    ("model", "Model"),
    ("backend", "Backend"),
)
SHOWN_GROUPS = 50
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
    by = next((value for value, _ in GROUPS if value == request.GET.get("by")), GROUPS[0][0])
    listing = Listing(request, STATISTICS, kept=("by",), default_range=_first_range(project, now))
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    query, step = _whole_steps(listing, project, now)
    over_time = statistics(project.pk, query, step)
    grouped, _ = groups(project.pk, query, by)
    points = _filled(over_time.rows, query, step)
    rows = Rows(listing, query.range, reverse("console:incidents", args=[project.slug]))
    context = {
        "listing": listing,
        "groups": [(listing.url(by=key), words, key == by) for key, words in GROUPS],
        "by": by,
        "by_words": dict(GROUPS)[by],
        "step": step,
        "zone": listing.zone_name,
        "date_format": "j M H:i" if step == "hour" else "j M Y",
        "total": over_time.total,
        "blocked": over_time.total.loop_calls_blocked
        if over_time.total.blocked is None
        else over_time.total.blocked,
        "labelled": over_time.total.true_loops + over_time.total.false_alarms,
        "points": points,
        "newest_points": [
            (point, rows.between(point.at, _next(point.at, step, query.zone)))
            for point in reversed(points)
            if point.numbers.checks or point.numbers.incidents
        ],
        "chart": _chart(points, listing.zone_name, rows.of_chart),
        "rows": [(row, rows.of_group(by, row.key)) for row in grouped[:SHOWN_GROUPS]],
        "links": rows,
        "is_cut": len(grouped) > SHOWN_GROUPS,
        "has_calls": by != "kind" and over_time.total.checks is not None,
        "recovery": over_time.recovery,
        "judge": over_time.judge,
        "false_alarms": [
            (LabelReason(reason).label.partition(":")[0], count) for reason, count in over_time.false_alarms
        ],
        "counted_at": over_time.counted_at,
        "without_demo": listing.with_terms(language.term("demo", "no"), without=("demo",)),
    }
    return render(request, "statistics/page.html", context)


def _first_range(project: Project, now: datetime) -> str:
    """Return a week, or a day on the first day of a project."""
    began = project.first_event_at
    return "24h" if began is not None and now - began < timedelta(hours=24) else "7d"


def _whole_steps(listing: Listing, project: Project, now: datetime) -> tuple[ListQuery, By]:
    """Return the query with both ends of its range, the first at the beginning of an hour or day, and which of the two."""
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


@dataclass(frozen=True, slots=True)
class Rows:
    """Addresses of the incidents behind the numbers: the same filter and time range in the list of incidents."""

    listing: Listing
    range: TimeRange
    path: str

    def of(self, *terms: Term, sort: str = "") -> str:
        """Return the address of the counted incidents, narrowed by more terms."""
        span = f"{time_ranges.written(self.range.start)}/{time_ranges.written(self.range.end)}"
        return self.listing.url_in(INCIDENTS, self.path, *terms, range=span, sort=sort)

    def between(self, start: datetime, end: datetime) -> str:
        """Return the address of the incidents of one hour or day."""
        span = f"{time_ranges.written(max(start, self.range.start or start))}/{time_ranges.written(end)}"
        return self.listing.url_in(INCIDENTS, self.path, range=span)

    def of_group(self, by: By, key: str) -> str:
        """Return the address of the incidents of one group."""
        if by != "model":
            return self.of(language.term(by, key))
        backend, _, model = key.partition("/")
        return self.of(language.term("backend", backend), language.term("model", model))

    @property
    def all(self) -> str:
        """All of them."""
        return self.of()

    @property
    def blocked(self) -> str:
        """Those with blocked calls."""
        return self.of(language.parse("blocked:>0")[0], sort="-blocked")

    @property
    def recovered(self) -> str:
        """Those after which the agent recovered."""
        return self.of(language.term("recovered", "yes"), language.term("active", "no"))

    @property
    def confirmed(self) -> str:
        """Those that people labelled as loops."""
        return self.of(language.term("label", "true_loop"))

    @property
    def costly(self) -> str:
        """All of them, the most expensive first."""
        return self.of(sort="-cost")

    @property
    def of_chart(self) -> str:
        """The address of all, to which a script adds the time range."""
        return self.listing.url_in(INCIDENTS, self.path, range="")


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


def _chart(points: list[Point], zone: str, url: str) -> dict[str, Any]:
    return {
        "zone": zone,
        "url": url,
        "at": [int(point.at.timestamp()) for point in points],
        "checks": [point.numbers.checks or 0 for point in points],
        "warned": [point.numbers.warned or 0 for point in points],
        "blocked": [point.numbers.blocked or 0 for point in points],
        "loops": [point.numbers.loops for point in points],
    }
