"""The Ingest page: accepted, duplicate, altered and rejected events by request, reason and key."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.insights.chart import Bar, BarPart, Chart, nice_top
from detection.selectors import dashboard
from detection.selectors.dashboard import Intake
from detection.selectors.reported_events import reported_events

BARS = 60
"""Requests in the chart: as many as stay apart on a phone."""
MIN_HEIGHT = 3.0
"""Percent of the chart's height; below it, one event beside a batch of hundreds could not be seen."""
KEYS: list[tuple[int | str, str]] = [
    (1, "accepted"),
    (4, "altered"),
    ("once", "duplicate"),
    ("act", "rejected"),
]
"""Colour and name of what became of events, from the bottom up."""


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the figures and the newest requests."""
    intake = dashboard.intake(request.project.pk)
    context = {"intake": intake, "chart": _chart(intake), "reported": reported_events(request.project)}
    return render(request, "integrations/ingest.html", context)


def _chart(intake: Intake) -> Chart:
    """Return the events of the newest requests, the newest at the right; a rejected request counts as one event."""
    counted = [
        (one.accepted - one.altered, one.altered, one.duplicate, one.rejected or int(one.status >= 400))
        for one in reversed(intake.recent[:BARS])
    ]
    top = nice_top(max((float(sum(counts)) for counts in counted), default=0.0))
    width, bars = 100 / BARS, []
    for place, counts in enumerate(counted):
        parts, height = [], 0.0
        for (color, _), count in zip(KEYS, counts, strict=True):
            if count > 0:
                part = max(MIN_HEIGHT, 100 * count / top)
                height += part
                parts.append(BarPart(color, f"{max(0.0, 100 - height):.2f}%", f"{part:.2f}%"))
        words = ", ".join(
            f"{count} {name}" for (_, name), count in zip(KEYS, counts, strict=True) if count > 0
        )
        if parts:
            bars.append(Bar(f"{(place + 0.1) * width:.2f}%", f"{0.8 * width:.2f}%", parts, words, ""))
    return Chart(KEYS, bars, "", f"{top:g}", f"{top / 2:g}", [], [], [])
