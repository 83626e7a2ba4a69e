"""The Ingest page: accepted, duplicate, altered and rejected events by request, reason and key."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.selectors import dashboard

BAR_WIDTH, BAR_HEIGHT, BARS = 9, 64, 60


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the figures and the newest requests."""
    intake = dashboard.intake(request.project.pk)
    top = max((max(a.accepted + a.duplicate + a.rejected, 1) for a in intake.recent), default=1)
    bars = []
    for index, attempt in enumerate(reversed(intake.recent[:BARS])):
        y = float(BAR_HEIGHT)
        pieces = []
        rejected = attempt.rejected or (1 if attempt.status >= 400 else 0)
        for name, count in (
            ("ok", attempt.accepted - attempt.altered),
            ("alt", attempt.altered),
            ("dup", attempt.duplicate),
            ("rej", rejected),
        ):
            if count > 0:
                height = max(3.0, count / top * (BAR_HEIGHT - 4))
                y -= height
                pieces.append((name, round(max(y, 0), 1), round(height, 1)))
        bars.append((index * (BAR_WIDTH + 2), pieces))
    context = {
        "intake": intake,
        "bars": bars,
        "bar_width": BAR_WIDTH,
        "chart_width": BARS * (BAR_WIDTH + 2),
        "chart_height": BAR_HEIGHT,
    }
    return render(request, "integrations/ingest.html", context)
