"""The report of a week: a page that needs no account, and the links to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from detection.console import formatting
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.insights.board import BOARDS, Period, draw
from detection.console.insights.figures import figures_of, rate_words
from detection.console.insights.links import Link
from detection.filtering import language
from detection.filtering.time_ranges import TimeRange
from detection.models import Report, Role, Session
from detection.selectors.filters import list_query
from detection.selectors.insights import InsightRow, Insights, insights
from detection.selectors.lists import LOOPS
from detection.selectors.loops import LoopRow, list_loops
from detection.services import report_links
from detection.services.errors import NotFound, ServiceError
from detection.services.projects import reports as service

SHOWN_LOOPS: Final = 5
LOOKED_AT: Final = 10
"""Agents with the most loops that are asked whether anything can stop them; each costs a query by index."""


@dataclass(frozen=True, slots=True)
class ToDo:
    """Something to do: words, why, and the page where it is done, which asks for an account."""

    icon: str
    words: str
    why: str
    action: str
    url: str


@never_cache
@require_safe
def page(request: HttpRequest, token: str) -> HttpResponse:
    """Show a report to whoever has its link: names and figures, no arguments and no results."""
    try:
        report = service.find_report(token)
    except NotFound as problem:
        return render(request, "insights/report.html", {"problem": problem.detail}, status=404)
    span = TimeRange("", report.starts_at, report.ends_at)
    query = service.query_of(report)
    found = insights(report.project_id, query, "agent")
    loops = list_loops(
        report.project_id,
        list_query(LOOPS, "", range=span, sort="-cost", zone=UTC),
        limit=SHOWN_LOOPS,
    ).items
    figures = figures_of("cost", found.total, defaultdict[str, Link | None](lambda: None))
    response = render(
        request,
        "insights/report.html",
        {
            "report": report,
            "sentence": report_links.sentence(
                service.figures_of(report, found.total.numbers, found.total.before)
            ),
            "figures": [figures[place] for place in (0, 2, 3, 4)],
            "chart": draw(report.project, BOARDS["cost"], "agent", Period(query, "day", "a day", UTC)),
            "loops": [(row, _loop_url(report, row)) for row in loops],
            "to_do": _to_do(report, found, [*loops]),
        },
    )
    response["X-Robots-Tag"] = "noindex"
    return response


@never_cache
@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def links_page(request: ProjectRequest) -> HttpResponse:
    """List the links to reports, create one or revoke one."""
    project, token = request.project, ""
    if request.method == "POST":
        try:
            if request.POST.get("action") == "revoke":
                service.revoke_report(project.pk, request.POST.get("id", "")[:64], actor_of(request))
                messages.success(request, "Link revoked. It opens nothing any more.")
                return redirect("console:reports", project.slug)
            _, token = service.create_report(project.pk, actor_of(request))
        except ServiceError as problem:
            messages.error(request, problem.detail)
            return redirect("console:reports", project.slug)
    context = {
        "reports": service.open_reports(project.pk),
        "weekly_routes": service.weekly_routes(project.pk),
        "created": request.build_absolute_uri(reverse("console:report", args=[token])) if token else "",
    }
    return render(request, "insights/reports.html", context)


def _to_do(report: Report, found: Insights, loops: list[LoopRow]) -> list[ToDo]:
    """Return at most three things to do: the most expensive loop, an agent that nothing stops, and what grew most."""
    slug, to_do = report.project.slug, []
    if loops and loops[0].cost_usd:
        row = loops[0]
        why = f"{row.incidents:,} run{'' if row.incidents == 1 else 's'}, {formatting.money(row.cost_usd)}"
        to_do.append(ToDo("loops", f"Fix: {row.title}", why, "Open", _loop_url(report, row)))
    watched = _only_watched(report, found)
    if watched is not None and watched.rate is not None:
        why = (
            f"{rate_words(watched.rate.loops_per_1000_calls)} loops per 1,000 calls, and nothing can stop it"
        )
        url = reverse("console:connect", args=[slug])
        to_do.append(ToDo("watch_only", f"Guard {formatting.visible(watched.key)}", why, "Guard", url))
    grown = max(
        found.rows, key=lambda row: row.numbers.loop_cost_usd - row.before.loop_cost_usd, default=None
    )
    if grown is not None and grown.key and grown.before.loop_cost_usd < grown.numbers.loop_cost_usd:
        before, now = (formatting.money(one.loop_cost_usd) for one in (grown.before, grown.numbers))
        query = {"q": str(language.term("agent", grown.key))}
        url = reverse("console:insights", args=[slug], query=query)
        words = f"Look at {formatting.visible(grown.key)}"
        to_do.append(
            ToDo("statistics", words, f"its loops cost {now}, {before} the week before", "Look", url)
        )
    return to_do


def _only_watched(report: Report, found: Insights) -> InsightRow | None:
    """Return the agent that loops most often among those whose newest session nothing can stop."""
    rows = [row for row in found.rows if row.key and row.rate and row.rate.loops]
    rows.sort(key=lambda row: -(row.rate.loops_per_1000_calls or 0) if row.rate else 0)
    for row in rows[:LOOKED_AT]:
        sessions = Session.objects.filter(project_id=report.project_id, agent=row.key)
        newest = sessions.order_by("-last_event_at").first()
        if newest is not None and newest.reach == "watch_only":
            return row
    return None


def _loop_url(report: Report, row: LoopRow) -> str:
    return reverse("console:loop", args=[report.project.slug, row.public_id])
