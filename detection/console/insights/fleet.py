"""All projects: what loops in each, what it costs, and which loops several of them have; and creating a project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console import formatting
from detection.console.access import actor_of, lacks_second_factor, own_page
from detection.console.accounts import preferences
from detection.console.insights.chart import Bucket, stacked
from detection.console.insights.figures import change_of, points_of
from detection.console.loops.loop_list import Trend, trend
from detection.engine.detectors import detector_for
from detection.filtering import language
from detection.models import Membership, Project
from detection.selectors.fleet import ProjectNow, project_now, shared_loops
from detection.selectors.rates import RateRow, rates
from detection.selectors.statistics import Numbers, of_projects
from detection.services.errors import ServiceError
from detection.services.projects import projects as service

MAX_SHOWN: Final = 500
MAX_FIGURES: Final = 60
"""Projects with figures: each costs some queries. The others are listed by name. A judgement."""
DAYS: Final = 7


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A project of the person.

    Attributes
    ----------
    now
        None for projects that are archived, that ask for a second factor first, or beyond `MAX_FIGURES`.
    state
        Why there are no figures, or that nothing is received.
    """

    membership: Membership
    now: ProjectNow | None
    state: str
    rate: RateRow | None
    rate_change: tuple[str, str]
    cost_usd: float
    cost_change: tuple[str, str]
    trend: Trend | None

    @property
    def project(self) -> Project:
        """The project."""
        return self.membership.project


@dataclass(frozen=True, slots=True)
class FleetNow:
    """What happens in all projects together."""

    looping: int
    projects: int
    usd_per_minute: float
    calls_per_minute: float
    held: int


@dataclass(frozen=True, slots=True)
class SeveralLine:
    """A loop of several projects, with the list of it in each of them."""

    title: str
    agents: int
    runs: int
    cost_usd: float
    places: list[tuple[str, str]]


@never_cache
@own_page
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the person's projects, or create one with the person as its admin."""
    may_create = service.may_create_projects(request.user)
    error: ServiceError | None = None
    if request.method == "POST":
        if not may_create:
            raise PermissionDenied
        try:
            project = service.create_project(actor_of(request), name=request.POST.get("name", ""))
        except ServiceError as problem:
            error = problem
        else:
            messages.success(request, f"Project {project.name} created. You are its admin.")
            return redirect("console:project", project.slug)
    found = Membership.objects.filter(user_id=request.user.pk or 0).select_related("project")
    shown = [*found.order_by(F("project__archived_at").asc(nulls_first=True), "project__name")[:MAX_SHOWN]]
    context: dict[str, object] = {
        "may_create": may_create,
        "error": error,
        "given": request.POST,
        "max_name": service.MAX_NAME_CHARACTERS,
        **_figures(request, shown),
    }
    return render(request, "insights/fleet.html", context, status=422 if error else 200)


def _figures(request: HttpRequest, shown: list[Membership]) -> dict[str, object]:
    """Return the rows and the charts of the projects that the person may see now."""
    zone, now = preferences.zone(request), timezone.now()
    first = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS - 1)
    seen = [
        one.project
        for one in shown
        if not one.project.archived_at and not lacks_second_factor(request, one.project)
    ][:MAX_FIGURES]
    ids = [one.pk for one in seen]
    starts = [(first.replace(tzinfo=None) + timedelta(days=day)).replace(tzinfo=zone) for day in range(DAYS)]
    place_of = {at: place for place, at in enumerate(starts)}
    by_day: dict[int, list[Numbers]] = {pk: [Numbers() for _ in starts] for pk in ids}
    for (at, pk), numbers in of_projects(ids, first, now, zone).items():
        by_day[pk][place_of[at]] = numbers
    before: dict[int, float] = dict.fromkeys(ids, 0.0)
    for (_, pk), numbers in of_projects(ids, first - (now - first), first, zone).items():
        before[pk] += numbers.loop_cost_usd
    rate_of = {row.key: row for row in rates(ids, first, now, "project", with_demo=True)} if ids else {}
    at_once = {pk: project_now(pk) for pk in ids}
    rows = [_row(request, one, at_once, by_day, before, rate_of.get(one.project.slug), now) for one in shown]
    rows.sort(key=lambda row: (row.now is None, -(row.now.looping if row.now else 0), -row.cost_usd))
    buckets = [Bucket(at, at + timedelta(days=1)) for at in starts]
    costs = {one.name: [numbers.loop_cost_usd for numbers in by_day[one.pk]] for one in seen}
    looping = [one for one in at_once.values() if one.looping]
    return {
        "rows": rows,
        "fleet": FleetNow(
            sum(one.looping for one in looping),
            len(looping),
            sum(one.usd_per_minute for one in looping),
            sum(one.calls_per_minute for one in looping),
            sum(one.held for one in at_once.values()),
        ),
        "seen": len(seen),
        "chart": stacked(buckets, costs, zone, formatting.money) if len(seen) > 1 else None,
        "zone": zone,
        "tz": zone,
        "date_format": "j M Y",
        "shared": _shared(seen, first, now) if len(seen) > 1 else [],
        "days": DAYS,
    }


def _row(
    request: HttpRequest,
    membership: Membership,
    at_once: Mapping[int, ProjectNow],
    by_day: Mapping[int, list[Numbers]],
    before: Mapping[int, float],
    rate: RateRow | None,
    now: datetime,
) -> FleetRow:
    project = membership.project
    figures = at_once.get(project.pk)
    if figures is None:
        archived = "Archived" if project.archived_at else ""
        second = "Asks for a second factor" if lacks_second_factor(request, project) else "Not counted here"
        return FleetRow(membership, None, archived or second, None, ("", ""), 0.0, ("", ""), None)
    state = "" if figures.is_receiving(now) else "Not receiving"
    state = state if project.first_event_at else "No calls yet"
    days = by_day[project.pk]
    cost = sum(one.loop_cost_usd for one in days)
    return FleetRow(
        membership,
        figures,
        state,
        rate,
        points_of(rate.loops_per_1000_calls, rate.before.loops_per_1000_calls) if rate else ("", ""),
        cost,
        change_of(cost, before[project.pk]),
        trend(tuple(one.incidents - one.false_alarms for one in days), f"{DAYS} days"),
    )


def _shared(seen: Iterable[Project], start: datetime, end: datetime) -> list[SeveralLine]:
    by_id = {one.pk: one for one in seen}
    return [
        SeveralLine(
            f"{one.tool}: {detector_for(one.kind).label}",
            one.agents,
            one.runs,
            one.cost_usd,
            [(by_id[pk].name, _loops_url(by_id[pk], one.kind, one.tool)) for pk in one.project_ids],
        )
        for one in shared_loops([*by_id], start, end)
    ]


def _loops_url(project: Project, kind: str, tool: str) -> str:
    text = language.write((language.term("detector", kind), language.term("tool", tool)))
    return reverse("console:loops", args=[project.slug], query={"q": text})
