"""The Statistics page: checks, loops and costs over time, by detector, tool and model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.models import Project
from detection.selectors.statistics import By, Numbers, Row, groups, statistics

SPANS: tuple[tuple[str, str, timedelta, By], ...] = (
    ("24h", "24 hours", timedelta(hours=24), "hour"),
    ("7d", "7 days", timedelta(days=7), "hour"),
    ("30d", "30 days", timedelta(days=30), "day"),
    ("90d", "90 days", timedelta(days=90), "day"),
    ("365d", "1 year", timedelta(days=365), "day"),
)
GROUPS: tuple[tuple[By, str], ...] = (
    ("kind", "Detector"),
    ("tool", "Tool"),
    ("model", "Model"),
    ("backend", "Backend"),
)
SHOWN_GROUPS = 50


@dataclass(frozen=True, slots=True)
class Point:
    """One hour or day of the charts and their table."""

    at: datetime
    numbers: Numbers


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show totals, two charts over time with their numbers, and one grouping."""
    now = timezone.now()
    span = next(
        (row for row in SPANS if row[0] == request.GET.get("span")), _first_span(request.project, now)
    )
    by = next((value for value, _ in GROUPS if value == request.GET.get("by")), GROUPS[0][0])
    demo = request.GET.get("demo") != "no"
    start = _floor(now - span[2], span[3])
    over_time = statistics(request.project.pk, start, now, span[3], demo=demo)
    grouped, _ = groups(request.project.pk, start, now, by, demo=demo)
    points = _filled(over_time.rows, start, now, span[3])
    context = {
        "spans": [(key, words, key == span[0]) for key, words, _, _ in SPANS],
        "groups": [(key, words, key == by) for key, words in GROUPS],
        "by": by,
        "by_words": dict(GROUPS)[by],
        "step": span[3],
        "demo": demo,
        "total": over_time.total,
        "labelled": over_time.total.true_loops + over_time.total.false_alarms,
        "points": points,
        "newest_points": [
            point for point in reversed(points) if point.numbers.checks or point.numbers.incidents
        ],
        "chart": _chart(points),
        "rows": grouped[:SHOWN_GROUPS],
        "is_cut": len(grouped) > SHOWN_GROUPS,
        "has_calls": by != "kind",
        "recovery": over_time.recovery,
        "judge": over_time.judge,
        "counted_at": over_time.counted_at,
    }
    return render(request, "statistics/page.html", context)


def _first_span(project: Project, now: datetime) -> tuple[str, str, timedelta, By]:
    """Return a week, or a day on the first day of a project."""
    began = project.first_event_at
    return SPANS[0] if began is not None and now - began < SPANS[0][2] else SPANS[1]


def _floor(moment: datetime, step: By) -> datetime:
    moment = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return moment.replace(hour=0) if step == "day" else moment


def _filled(rows: tuple[Row, ...], start: datetime, end: datetime, step: By) -> list[Point]:
    """Return a point for every step, so that an hour without calls is drawn as zero."""
    known = {datetime.fromisoformat(row.key): row.numbers for row in rows}
    stride = timedelta(hours=1) if step == "hour" else timedelta(days=1)
    points, moment = [], start
    while moment < end:
        numbers = known.get(moment) or Numbers(checks=0, warned=0, blocked=0, token_count=0, cost_usd=0.0)
        points.append(Point(moment, numbers))
        moment += stride
    return points


def _chart(points: list[Point]) -> dict[str, Any]:
    return {
        "at": [int(point.at.timestamp()) for point in points],
        "checks": [point.numbers.checks or 0 for point in points],
        "warned": [point.numbers.warned or 0 for point in points],
        "blocked": [point.numbers.blocked or 0 for point in points],
        "loops": [point.numbers.loops for point in points],
    }
