"""Insights: what loops cost, how often agents loop, and what protection did, over time and by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from urllib.parse import parse_qsl, urlencode

from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console import formatting
from detection.console.access import ProjectRequest, in_project, memberships
from detection.console.insights import chart, comparison
from detection.console.insights.figures import FALSE_STOPS, RATE, change_of, false_stops, figures_of, percent
from detection.console.insights.links import Links, group_term
from detection.console.list_export import export_of
from detection.console.listing import Listing
from detection.console.policies.policy_pages import changes_of
from detection.engine.detectors import detector_for
from detection.filtering.time_ranges import TimeRange
from detection.models import Project
from detection.models.incidents import LabelReason, ReactionOutcome
from detection.selectors.filters import ListQuery
from detection.selectors.insights import InsightRow, before_of, insights
from detection.selectors.lists import ONLY_LOOPS, STATISTICS
from detection.selectors.statistics import (
    By,
    Numbers,
    Statistics,
    Step,
    judged_incidents,
    over_time,
    statistics,
)
from detection.services.policies import overrides

GROUPS: Final[tuple[tuple[str, By, str], ...]] = (
    ("agent", "agent", "Agent"),
    ("model", "model", "Model"),
    ("tool", "tool", "Tool"),
    ("detector", "kind", "Detector"),
)
"""Value in the address, grouping of the statistics, words."""
SHOWN_GROUPS, MORE_GROUPS = 25, 200
MAX_SPAN: Final = timedelta(days=900)
STEPS: Final[tuple[tuple[timedelta, Step, str], ...]] = (
    (timedelta(hours=6), "minutes", "5 minutes"),
    (timedelta(days=4), "hour", "an hour"),
    (timedelta(days=93), "day", "a day"),
    (MAX_SPAN + timedelta(days=7), "week", "a week"),
)
"""The longest range with these buckets, and their words."""
MAX_MARKS: Final = 20
MAX_MARK_CHARACTERS: Final = 40
"""Changes of settings that are drawn, the newest; more lines run into one another. A judgement."""
FORMER_BY: Final = {"kind": "detector", "backend": "model"}
"""Groupings of the earlier page, and what shows the same now."""


@dataclass(frozen=True, slots=True)
class Board:
    """What a board draws and counts.

    Attributes
    ----------
    of
        The number of a group.
    link
        Name of the link of that number, see `Links.of_row`.
    sort
        Order of the groups, if none is asked for.
    """

    words: str
    title: str
    column: str
    of: Callable[[Numbers], float]
    write: Callable[[float], str]
    link: str
    sort: str


def _whole(value: float) -> str:
    return formatting.number(value)


BOARDS: Final[Mapping[str, Board]] = {
    "cost": Board(
        "Cost", "Cost of loops", "Cost", lambda one: one.loop_cost_usd, formatting.money, "costly", "-cost"
    ),
    "rate": Board(
        "Loop rate",
        "Loops found",
        "Loops",
        lambda one: one.loops_found,
        _whole,
        "loops",
        "-found",
    ),
    "protection": Board(
        "Protection",
        "Calls blocked in loops",
        "Blocked",
        lambda one: one.loop_calls_blocked,
        _whole,
        "blocked",
        "-blocked",
    ),
}
"""By the value in the address."""


@dataclass(frozen=True, slots=True)
class Period:
    """The range of a page in whole buckets."""

    query: ListQuery
    step: Step
    words: str
    zone: tzinfo

    @property
    def start(self) -> datetime:
        """Its beginning, which is that of a bucket."""
        assert self.query.range.start  # noqa: S101 - has both ends
        return self.query.range.start

    @property
    def end(self) -> datetime:
        """Its end."""
        assert self.query.range.end  # noqa: S101 - has both ends
        return self.query.range.end

    def starts(self) -> list[datetime]:
        """Return the beginning of each bucket."""
        found, at = [], self.start
        while at < self.end:
            found.append(at)
            at = self.after(at)
        return found

    def after(self, moment: datetime) -> datetime:
        """Return the beginning of the next bucket; days and weeks are those of the zone."""
        if self.step in ("minutes", "hour"):
            return moment + (timedelta(minutes=5) if self.step == "minutes" else timedelta(hours=1))
        own = moment.astimezone(self.zone).replace(tzinfo=None)
        own += timedelta(days=7 if self.step == "week" else 1)
        return own.replace(tzinfo=self.zone).astimezone(UTC)


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show a board: five figures, a chart, a table by group, and a comparison."""
    project, now = request.project, timezone.now()
    name, (by_name, by, by_words) = _board(request), _grouping(request)
    board = BOARDS[name]
    listing = Listing(
        request, STATISTICS, kept=("board", "by", "groups"), default_range=_first_range(project, now)
    )
    if listing.moved:
        return HttpResponseRedirect(listing.moved)
    context: dict[str, object] = {
        "listing": listing,
        "board": name,
        "boards": [
            (listing.url(board="" if key == "cost" else key), one.words, key == name)
            for key, one in BOARDS.items()
        ],
        "own_boards": listing.views,
    }
    if listing.is_invalid:
        # Numbers of a part of the filter would look like those of the whole.
        listing.query = replace(listing.query, is_empty=True)
        return render(request, "insights/invalid_filter.html", context)
    period = _period(listing, project, now)
    query = period.query
    if not request.GET.get("sort"):
        query = replace(query, order=STATISTICS.order(board.sort))
    listing.files = ((f"sort={query.order}&" if not request.GET.get("sort") else "", ""),)
    found = insights(project.pk, query, by)
    links = Links(listing, query.range, project.slug)
    shown = MORE_GROUPS if request.GET.get("groups") == "more" else SHOWN_GROUPS
    rows, available = found.rows[:shown], min(len(found.rows), MORE_GROUPS)
    whole = statistics(project.pk, query) if name == "protection" else None
    drawn = draw(
        project,
        board,
        by,
        period,
        lambda start, end: links.incidents(1, ONLY_LOOPS, start=start, end=end).url,
        marks_of(project, period.start, period.end),
    )
    colors = {key: color for color, key in drawn.keys}
    most = max((board.of(row.numbers) for row in found.rows), default=0) or 1
    context |= {
        "title": board.title,
        "column": board.column,
        "sort": board.sort.removeprefix("-"),
        "groups": [
            (listing.url(by="" if key == "agent" else key), words, key == by_name) for key, _, words in GROUPS
        ],
        "by": by_name,
        "by_words": by_words,
        "period": period,
        "before_words": "previous period",
        "zone": listing.zone_name,
        "tz": listing.zone,
        "means": {"rate": RATE, "false_stops": FALSE_STOPS},
        "date_format": "j M H:i" if period.step in ("minutes", "hour") else "j M Y",
        "figures": figures_of(name, found.total, links.of_row(found.total)),
        "chart": drawn,
        "chart_words": _chart_words(board, by_words, found.total),
        "rows": [
            GroupLine(
                row.key,
                _name(by, row.key),
                links.of_row(row, group_term(by, row.key)),
                row,
                colors.get(_name(by, row.key), chart.OTHERS if colors else 0),
                f"{100 * board.of(row.numbers) / most:.1f}%",
                board.write(board.of(row.numbers)) if board.of(row.numbers) or name != "cost" else "–",
                change_of(board.of(row.numbers), board.of(row.before), less_is_better=name != "protection"),
                board.link,
            )
            for row in rows
        ],
        "has_rates": found.total.rate is not None,
        "group_count": len(found.rows),
        "more": available if shown < available else 0,
        "more_url": listing.url(groups="more"),
        "has_several_projects": len(memberships(request, project.pk)) > 1,
        "comparison": None
        if query.terms
        else comparison.of_page(request, found, by, period.start, period.end),
    }
    if whole is not None:
        context |= _protection(whole, links, project, query)
    return render(request, "insights/page.html", context)


@in_project()
@require_safe
def export(request: ProjectRequest) -> HttpResponseBase:
    """Return the groups as a file."""
    project, now = request.project, timezone.now()
    listing = Listing(request, STATISTICS, default_range=_first_range(project, now))
    listing.query = _period(listing, project, now).query
    return export_of(request, listing, by=_grouping(request)[1])


@in_project()
@require_safe
def earlier_address(request: ProjectRequest) -> HttpResponse:
    """Lead from the earlier page to this one, with its filter, range, order and grouping."""
    kept = dict(parse_qsl(request.META["QUERY_STRING"], keep_blank_values=True))
    if "by" in kept:
        kept["by"] = FORMER_BY.get(kept["by"], kept["by"])
    else:
        kept["by"] = "detector"
    query = urlencode(
        {name: kept[name] for name in ("q", "range", "from", "to", "sort", "by") if name in kept}
    )
    url = reverse("console:insights", args=[request.project.slug])
    return HttpResponseRedirect(f"{url}?{query}", status=301)


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A row of the table of groups; `bar` is the part of the largest one."""

    key: str
    name: str
    links: Mapping[str, object]
    row: InsightRow
    color: int | str
    bar: str
    value: str
    change: tuple[str, str]
    link_name: str

    @property
    def false_stops(self) -> str:
        """Share of false stops."""
        return percent(false_stops(self.row.numbers))

    @property
    def link(self) -> object:
        """The rows behind the number of the board."""
        return self.links[self.link_name]


def _board(request: ProjectRequest) -> str:
    name = request.GET.get("board", "")
    return name if name in BOARDS else "cost"


def _grouping(request: ProjectRequest) -> tuple[str, By, str]:
    return next((one for one in GROUPS if one[0] == request.GET.get("by")), GROUPS[0])


def _name(by: By, key: str) -> str:
    return detector_for(key).label if by == "kind" else key or "(none)"


def _first_range(project: Project, now: datetime) -> str:
    """Return the default range: a week, or a day on the first day of a project."""
    began = project.first_event_at
    return "24h" if began is not None and now - began < timedelta(hours=24) else "7d"


def _period(listing: Listing, project: Project, now: datetime) -> Period:
    """Return the range of a listing from the beginning of a bucket on, with both ends.

    A length, such as seven days, ends with the bucket of now and has no more buckets than it says.
    """
    asked = listing.range.start
    start, end = listing.range.start or project.created_at, min(listing.range.end or now, now)
    start = max(min(start, end), end - MAX_SPAN)
    step, words = next((step, words) for longest, step, words in STEPS if end - start <= longest)
    start = start.astimezone(listing.zone).replace(second=0, microsecond=0)
    start = start.replace(minute=start.minute // 5 * 5 if step == "minutes" else 0)
    if step in ("day", "week"):
        start = start.replace(hour=0)
    if step == "week":
        start -= timedelta(days=start.weekday())
    period = Period(
        replace(listing.query, range=TimeRange("", start.astimezone(UTC), end)), step, words, listing.zone
    )
    if asked is None or "/" in listing.range.text or period.start >= asked:
        return period
    started = TimeRange("", period.after(period.start), end)
    return replace(period, query=replace(period.query, range=started))


def draw(
    project: Project,
    board: Board,
    by: By,
    period: Period,
    url_of: Callable[[datetime, datetime], str] = lambda start, end: "",
    marks: Sequence[chart.Mark] = (),
) -> chart.Chart:
    """Return the chart of a board; two queries. Bars lead where `url_of` says for their time."""
    starts = period.starts()
    place_of = {at: place for place, at in enumerate(starts)}
    series: dict[str, list[float]] = {}
    for (at, key), numbers in over_time(project.pk, period.query, by, period.step).items():
        if at in place_of:
            values = series.setdefault(_name(by, key), [0.0] * len(starts))
            values[place_of[at]] += board.of(numbers)
    before, shift = [0.0] * len(starts), period.end - period.start
    earlier = over_time(project.pk, before_of(period.query), by, period.step, shift)
    for (at, _), numbers in earlier.items():
        if at in place_of:
            before[place_of[at]] += board.of(numbers)
    buckets = [chart.Bucket(at, period.after(at), url_of(at, period.after(at))) for at in starts]
    return chart.stacked(buckets, series, period.zone, board.write, before=before, marks=marks)


def marks_of(project: Project, start: datetime, end: datetime) -> list[chart.Mark]:
    """Return the changes of settings in a time, the newest `MAX_MARKS`."""
    url = reverse("console:policy_history", args=[project.slug])
    found = []
    for entry in overrides.history(project.pk, start=start, end=end, limit=MAX_MARKS):
        # A date of expiry comes with a setting, and says less.
        changes = sorted(changes_of(entry), key=lambda change: change[0] == "Expires at")
        if changes:
            label, before, after = changes[0]
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            source = formatting.source_name(entry.subject)
            change = f"{label} {_change_words(before, after)}{more}"
            found.append(
                chart.Mark(entry.at, f"{source}: {change}", url, _short_mark(source, label, change, more))
            )
    return found


def _change_words(before: str, after: str) -> str:
    if formatting.UNSET in (before, after):
        return f"set to {after}" if before == formatting.UNSET else f"no longer {before}"
    return f"{before} to {after}"


def _short_mark(source: str, label: str, change: str, more: str) -> str:
    """Return what fits beside a mark: the name of the scope, and as much of the change as there is space for."""
    name = source.rpartition(" / ")[2] if " / " in source else source.partition(" ")[2] or source
    first, change = (text[0].lower() + text[1:] for text in (label, change))
    for words in (
        f"{name}: {change}",
        f"{name}: {first}{more}",
        f"{name}: settings",
    ):
        if len(words) <= MAX_MARK_CHARACTERS:
            return words
    return first if len(first) <= MAX_MARK_CHARACTERS else "settings"


def _chart_words(board: Board, by_words: str, total: InsightRow) -> str:
    """Return the sentence that is the name of the chart."""
    now, before = board.of(total.numbers), board.of(total.before)
    words = f"{board.title} by {by_words.lower()}: {board.write(now)} in all"
    return f"{words}, {board.write(before)} in the previous period" if before else words


def _protection(found: Statistics, links: Links, project: Project, query: ListQuery) -> dict[str, object]:
    """Return what the board *Protection* shows below: reactions, the judge, and reasons of *This is fine*."""
    judged = judged_incidents(project.pk, query)
    return {
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
    }
