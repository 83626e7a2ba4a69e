"""The Loops page: the same loop across sessions as one row, with tabs, filters, actions on several and undo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from detection.console.access import ProjectRequest, in_project, missing_role, next_page
from detection.console.listing import Listing, Tab
from detection.console.loops import loop_actions, loop_text
from detection.console.loops.incident_text import Part
from detection.engine.detectors import detector_for
from detection.filtering.language import parse, term
from detection.models import Membership, Role
from detection.selectors import bulk_actions
from detection.selectors import loops as selector
from detection.selectors.lists import INCIDENTS, LOOPS, ONLY_LOOPS
from detection.selectors.loops import LoopRow
from detection.services.exceptions import fine
from detection.services.projects import visits

PAGE_ROWS: Final = 50
MAX_MEMBERS: Final = 200
TABS: Final = (
    ("open", "Open"),
    ("later", "Later"),
    ("later_but_firing", "Later, but firing"),
    ("fine", "Fine"),
    ("done", "Done"),
    ("", "All"),
)
_RARE: Final = ("later_but_firing",)
"""Tabs that are shown only when not empty."""
BAR_WIDTH, BAR_GAP, TREND_HEIGHT = 3, 1, 20


@dataclass(frozen=True, slots=True)
class Trend:
    """A small bar chart of runs over time."""

    width: int
    height: int
    path: str
    label: str


def trend(numbers: tuple[int, ...], span: str = "24 hours") -> Trend:
    """Lay out a bar per number; nothing is drawn for zero."""
    top, step = max((*numbers, 1)), BAR_WIDTH + BAR_GAP
    bars = (
        f"M{place * step} {TREND_HEIGHT}v-{max(2, round(number / top * TREND_HEIGHT))}h{BAR_WIDTH}V{TREND_HEIGHT}z"
        for place, number in enumerate(numbers)
        if number
    )
    total = sum(numbers)
    label = f"{total:,} run{'' if total == 1 else 's'} began in {span}"
    return Trend(len(numbers) * step - BAR_GAP, TREND_HEIGHT, "".join(bars), label)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the list, with its texts and its chart."""

    row: LoopRow
    parts: tuple[Part, ...]
    state: str
    chip: str
    trend: Trend
    others: tuple[str, ...] = ()
    """Names of the detectors that found it beside the first."""
    incidents_url: str = ""
    costly_url: str = ""
    """The runs that its cost sums up, those that cost most first."""


def line_of(row: LoopRow) -> Line:
    """Prepare a row for the template."""
    return Line(
        row,
        loop_text.sentence(row),
        *loop_text.state(row),
        trend(row.trend),
        tuple(detector_for(kind).label for kind in row.found_by[1:]),
    )


def members_of(project_id: int) -> list[str]:
    """Return the user names of the members, to whom loops can be assigned."""
    rows = Membership.objects.filter(project_id=project_id).order_by("user__username")
    return list(rows.values_list("user__username", flat=True)[:MAX_MEMBERS])


@in_project()
@require_safe
def earlier_address(request: ProjectRequest, public_id: str = "") -> HttpResponse:
    """Lead from where loops were called patterns to the list, or to a loop."""
    page = "loop" if public_id else "loops"
    names = [request.project.slug, *filter(None, [public_id])]
    query = f"?{request.META['QUERY_STRING']}" if request.META["QUERY_STRING"] else ""
    return HttpResponseRedirect(reverse(f"console:{page}", args=names) + query)


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the list."""
    project, listing = request.project, Listing(request, LOOPS)
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    found = listing.page(selector.list_loops, PAGE_ROWS)
    counts = selector.status_counts(project.pk, listing.query)
    tabs = listing.tabs(TABS, counts)
    incidents_url = reverse("console:loop_history", args=[project.slug])
    context = {
        "listing": listing,
        "tabs": [
            *(tab for tab in tabs if tab.count or tab.is_current or tab.value not in _RARE),
            _history_tab(project.slug),
        ],
        "closed": listing.query.only("is") in ("later", "later_but_firing", "fine"),
        "lines": [
            replace(
                line_of(row),
                incidents_url=f"{incidents_url}?{urlencode({'q': term('loop', row.public_id)})}",
                costly_url=listing.url_in(
                    INCIDENTS, incidents_url, term("loop", row.public_id), *parse(ONLY_LOOPS), sort="-cost"
                ),
            )
            for row in found.items
        ],
        "sample": SAMPLE,
        "next_page": listing.next_page(found.next_cursor),
        "in_other_tabs": counts.all,
        "is_narrowed": listing.is_narrowed("is"),
        "all_url": listing.with_terms(without=("is",)),
        "matching": next((tab for tab in tabs if tab.is_current), None),
        "up_to": selector.newest_key(project.pk),
        **loop_actions.progress(request, bulk_actions.shown(project.pk, request.user.get_username())),
    }
    return render(request, "loops/page.html", context)


def _history_tab(slug: str, *, is_current: bool = False) -> Tab:
    return Tab("history", "History", reverse("console:loop_history", args=[slug]), None, False, is_current)


def tabs_of(slug: str) -> list[Tab]:
    """Return the tabs of the list for its history, which is one of them, without their numbers."""
    address = reverse("console:loops", args=[slug])
    tabs = [
        Tab(
            value,
            words,
            f"{address}?{urlencode({'q': str(term('is', value)) if value else ''})}",
            None,
            False,
            False,
        )
        for value, words in TABS
        if value not in _RARE
    ]
    return [*tabs, _history_tab(slug, is_current=True)]


SAMPLE: Final = trend((0, 0, 0, 1, 0, 0, 2, 1, 0, 0, 3, 2, 0, 1, 4, 2, 0, 3, 5, 3, 1, 4, 6, 5))
"""The trend of the example that an empty list shows."""


@in_project(Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Apply an action to loops and offer undo."""
    saves = request.POST.get("action") == "fine" and request.POST.get("where", "") not in ("", fine.RUN)
    if saves and not request.membership.allows(Role.ADMIN):
        return missing_role(request, Role.ADMIN)
    return loop_actions.act(request)


@in_project(Role.VIEWER)
@require_POST
def mark_as_read(request: ProjectRequest) -> HttpResponse:
    """Note that the person has seen what changed since the last visit."""
    visits.mark_as_read(request.membership)
    return HttpResponseRedirect(next_page(request, reverse("console:now", args=[request.project.slug])))
