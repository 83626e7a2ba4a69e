"""Reads patterns with their figures, which are counted from the incidents, for the API and the screens alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict

from django.db.models import (
    Case,
    CharField,
    Count,
    Exists,
    F,
    Func,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.utils import timezone

from detection.engine.detectors import detector_for
from detection.engine.pattern_identity import title
from detection.models import AlertSilence, Incident, Pattern, PatternState
from detection.models.incidents import IS_LOOP, IncidentLabel, IncidentStatus
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import PATTERNS
from detection.selectors.pages import Page, cut
from detection.selectors.pattern_state import active_mutes, conditions, firing_mutes
from detection.selectors.row_fields import Shown

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

STATES: Final = tuple(PatternState.values)
TREND_BUCKETS: Final = 24
TREND_SPAN: Final = timedelta(days=1)
MAX_NAMES: Final = 50
_OF_PATTERNS: Final = ("is", "owner", "assigned")
"""Fields of the filter language that select patterns; all others select incidents."""
MAX_IN_NAVIGATION: Final = 1000
SHARED_FACTS: Final = ("tool", "agent", "model", "backend", "loop_id", "session_name")


ALL_PATTERNS = list_query(PATTERNS)
"""Every pattern, those seen last first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mute:
    """The active mute of a pattern."""

    # fmt: off
    reason: Annotated[str, Shown("The reason.")]
    by: Annotated[str, Shown("Who muted it: a user name or `key:<id>`.")]
    starts_at: Annotated[datetime, Shown("When it was muted.")]
    ends_at: Annotated[datetime, Shown("When the mute ends at the latest.")]
    baseline: Annotated[int | None, Shown(
        "More new incidents than this in 24 hours end the mute. Null if only the time ends it.",
    )]
    incidents: Annotated[int, Shown("How many incidents have been detected since.")]
    # fmt: on


class NameCount(NamedTuple):
    """A value and how many incidents have it."""

    name: Annotated[str, Shown("The value.")]
    incidents: Annotated[int, Shown("Number of incidents.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRow:
    """A pattern as lists and exports show it; figures are of the incidents that match the filters.

    Attributes
    ----------
    cost_note
        Why it has no cost of its own: ``shared``, if incidents of other patterns found all its calls first, or
        ``not a loop``, if all incidents have that label. Empty for others.
    """

    # fmt: off
    id: int
    public_id: Annotated[str, Shown("Id of the pattern.", name="id")]
    title: Annotated[str, Shown("Description in a few words.")]
    kind: Annotated[str, Shown("Detector.")]
    tool: Annotated[str, Shown(
        "The tool, or the tools of a cycle. Empty for loops of several tools and for budgets.",
    )]
    program: Annotated[str, Shown("Program of the shell command. Empty for other tools.")]
    results: Annotated[str, Shown("`errors`, `empty`, or empty for all other results.")]
    detail: Annotated[str, Shown("The provider's problem, or the unit of the budget.")]
    state: Annotated[str, Shown("State.", choices=PatternState)]
    has_returned: Annotated[bool, Shown("Whether it was closed and has reopened.")]
    label: Annotated[str, Shown(
        "`true_loop` or `false_alarm`, if a person labelled the pattern; `false_alarm` also if each of its incidents "
        "has that label.", is_optional=True,
    )]
    assignee: Annotated[str | None, Shown("User name of the person it is assigned to.")]
    mute: Annotated[Mute | None, Shown("The active mute.")]
    incidents: Annotated[int, Shown("Number of incidents.")]
    open_incidents: Annotated[int, Shown("Number of open incidents.")]
    sessions: Annotated[int, Shown("Number of sessions.")]
    first_seen_at: Annotated[datetime, Shown("When its first incident was opened.")]
    last_seen_at: Annotated[datetime, Shown("When it was last detected.")]
    resolved_at: Annotated[datetime | None, Shown("When a person last resolved it.")]
    calls_in_loop: Annotated[int, Shown("Calls that belong to the loops, each counted once.")]
    calls_blocked: Annotated[int, Shown("Blocked calls.")]
    cost_usd: Annotated[Decimal, Shown(
        "Cost of its incidents without those labelled false alarms, in US dollars.",
    )]
    cost_note: str
    agents: Annotated[tuple[NameCount, ...], Shown("Agents, most frequent first.")]
    models: Annotated[tuple[NameCount, ...], Shown("Models, most frequent first.")]
    trend: Annotated[tuple[int, ...], Shown("Incidents opened in each of the last 24 hours, oldest first.")]
    # fmt: on

    @property
    def is_muted_but_firing(self) -> bool:
        """Whether incidents were detected since it was muted."""
        return self.mute is not None and self.mute.incidents > 0


class WithState(TypedDict):
    """The state that `with_state` adds."""

    state: str


def with_state(project_id: int) -> QuerySet[WithAnnotations[Pattern, WithState]]:
    """Return the patterns of a project with their `state`."""
    now = timezone.now()
    cases = [When(condition, then=Value(state.value)) for state, condition in conditions(now)]
    state = Case(*cases, default=Value(PatternState.ENDED.value), output_field=CharField())
    return Pattern.objects.filter(project_id=project_id).annotate(state=state)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures counted from the incidents of a pattern; `id` is the pattern's, the last two are only read to sort by."""

    id: int
    incidents: int
    sessions: int
    first_seen: datetime
    last_seen: datetime
    cost: Decimal
    calls: int
    calls_found: int
    loops: int
    blocked: int
    pattern_tool: str = ""
    pattern_owner: str = ""


def list_patterns(
    project_id: int, query: ListQuery = ALL_PATTERNS, cursor: str = "", limit: int = 50
) -> Page[PatternRow]:
    """List a project's patterns with the figures of the matching incidents.

    Parameters
    ----------
    query
        Of the list `PATTERNS`.
    cursor
        `next_cursor` of the page before, or empty.
    limit
        1 to 500.

    Raises
    ------
    BadCursor
        Six queries, one of which groups the matching incidents.
    """
    figures, by = _figures(_matching(project_id, query.condition())), query.order.key.column
    if by in _NAMES_TO_SORT_BY:
        figures = figures.annotate(**{by: Coalesce(Min(_NAMES_TO_SORT_BY[by]), Value(""))})
    rows = query.order.page(figures, cursor, "pattern_id")
    found = [_read_figures(row) for row in rows[: limit + 1]]
    page = cut(found, limit, query.order.cursor)
    # The patterns of the page are known, so their state need not be found again.
    counted = _matching(project_id, query.condition(without=_OF_PATTERNS))
    return Page(tuple(_rows(project_id, page.items, counted)), page.next_cursor)


_NAMES_TO_SORT_BY = {"pattern_tool": "pattern__tool", "pattern_owner": "pattern__assignee__username"}


def _read_figures(row: dict[str, Any]) -> Figures:
    return Figures(id=row.pop("pattern_id"), **row)


def _matching(project_id: int, condition: Q) -> QuerySet[Incident]:
    return Incident.objects.filter(condition, project_id=project_id, pattern__isnull=False)


def _figures(incidents: QuerySet[Incident]) -> Any:
    """Group incidents by pattern; the columns are those of `Figures`."""
    return (
        incidents.order_by()
        .values("pattern_id")
        .annotate(
            incidents=Count("pk"),
            sessions=Count("session_name", distinct=True),
            first_seen=Min("opened_at"),
            last_seen=Max("last_seen_at"),
            cost=Coalesce(Sum("cost_usd", filter=IS_LOOP), Decimal()),
            calls=Coalesce(Sum("counted_calls", filter=IS_LOOP), 0),
            calls_found=Coalesce(Sum("calls_in_loop", filter=IS_LOOP), 0),
            loops=Count("pk", filter=IS_LOOP),
            blocked=Sum("calls_blocked"),
        )
    )


def _rows(project_id: int, figures: Sequence[Figures], incidents: QuerySet[Incident]) -> list[PatternRow]:
    """Complete the figures of patterns to rows; five queries."""
    ids = [row.id for row in figures]
    patterns = {row.pk: row for row in with_state(project_id).select_related("assignee").filter(pk__in=ids)}
    open_ = dict(
        Incident.objects.filter(project_id=project_id, status=IncidentStatus.OPEN, pattern__in=ids)
        .order_by()
        .values_list("pattern_id")
        .annotate(Count("pk"))
    )
    agents, models = _names(incidents.filter(pattern__in=ids))
    trends, mutes = _trends(project_id, ids), _mutes(project_id, ids)
    found = []
    for row in figures:
        if (pattern := patterns.get(row.id)) is None:
            continue
        own, at_work = {name: getattr(pattern, name) for name in _OWN}, open_.get(pattern.pk, 0)
        if pattern.state == PatternState.NOT_A_LOOP:
            own["label"] = IncidentLabel.FALSE_ALARM
        is_closed = pattern.resolved_at is not None or own["label"] == IncidentLabel.FALSE_ALARM
        without_calls = "shared" if row.calls_found else "" if row.loops else "not a loop"
        found.append(
            PatternRow(
                **own,
                title=title(
                    detector_for(pattern.kind).headline, pattern.tool, pattern.program, pattern.detail
                ),
                has_returned=is_closed and at_work > 0,
                assignee=pattern.assignee.get_username() if pattern.assignee else None,
                incidents=row.incidents,
                sessions=row.sessions,
                open_incidents=at_work,
                first_seen_at=row.first_seen,
                last_seen_at=row.last_seen,
                cost_usd=row.cost,
                calls_in_loop=row.calls,
                cost_note="" if row.calls else without_calls,
                calls_blocked=row.blocked,
                agents=agents.get(pattern.pk, ()),
                models=models.get(pattern.pk, ()),
                trend=trends[pattern.pk],
                mute=mutes.get(pattern.pk),
            )
        )
    return found


_OWN: Final = (
    "id",
    "public_id",
    "kind",
    "tool",
    "program",
    "results",
    "detail",
    "state",
    "label",
    "resolved_at",
)
"""Fields of a row that the pattern has under the same names."""
_Names = dict[int, tuple[NameCount, ...]]


def _names(incidents: QuerySet[Incident]) -> tuple[_Names, _Names]:
    """Count the agents and the models of patterns; one query."""
    agents: defaultdict[int, Counter[str]] = defaultdict(Counter)
    models: defaultdict[int, Counter[str]] = defaultdict(Counter)
    rows = incidents.order_by().values_list("pattern_id", "agent", "model").annotate(Count("pk"))
    for pattern, agent, model, number in rows:
        agents[pattern][agent] += number
        models[pattern][model] += number

    def named(counted: dict[int, Counter[str]]) -> _Names:
        return {
            pattern: tuple(NameCount(*one) for one in names.most_common(MAX_NAMES) if one[0])
            for pattern, names in counted.items()
        }

    return named(agents), named(models)


def _trends(project_id: int, pattern_ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Count the incidents that opened in each hour of the last day; one query."""
    now = timezone.now()
    start, width = now - TREND_SPAN, TREND_SPAN / TREND_BUCKETS
    found: dict[int, list[int]] = {pattern: [0] * TREND_BUCKETS for pattern in pattern_ids}
    place = Func(
        F("opened_at") - Value(start),
        template=f"floor(extract(epoch FROM %(expressions)s) / {width.total_seconds():.0f})::int",
        output_field=IntegerField(),
    )
    rows = Incident.objects.filter(
        project_id=project_id, pattern__in=pattern_ids, last_seen_at__gt=start, opened_at__gt=start
    )
    counted = rows.order_by().annotate(place=place).values_list("pattern_id", "place").annotate(Count("pk"))
    for pattern, at, number in counted:
        found[pattern][min(max(at, 0), TREND_BUCKETS - 1)] += number
    return {pattern: tuple(numbers) for pattern, numbers in found.items()}


def _mutes(project_id: int, pattern_ids: Sequence[int]) -> dict[int, Mute]:
    """Return the active mutes of patterns with the number of hidden incidents; one query."""
    now = timezone.now()
    since = (
        Incident.objects.filter(
            project_id=project_id, pattern=OuterRef("pattern"), last_seen_at__gt=OuterRef("starts_at")
        )
        .order_by()
        .values("pattern")
        .annotate(number=Count("pk"))
    )
    rows = (
        AlertSilence.objects.filter(
            project_id=project_id, pattern__in=pattern_ids, starts_at__lte=now, ends_at__gt=now
        )
        .annotate(hidden=Subquery(since.values("number")))
        .order_by("ends_at")
    )
    return {
        row.pattern_id: Mute(
            reason=row.reason,
            by=row.created_by,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            baseline=row.baseline,
            incidents=row.hidden or 0,
        )
        for row in rows
        if row.pattern_id is not None
    }


def newest_key(project_id: int) -> int:
    """Return the row id of the newest pattern, the bound of an action on all that match; 0 without any."""
    return Pattern.objects.filter(project_id=project_id).aggregate(newest=Max("pk"))["newest"] or 0


def matching_keys(project_id: int, query: ListQuery, up_to: int, limit: int) -> list[int]:
    """Return the row ids of the patterns that a query selects; not of those that are newer than `up_to`."""
    rows = _matching(project_id, query.condition()).filter(pattern__lte=up_to)
    return [*rows.order_by("-pattern").values_list("pattern", flat=True).distinct()[:limit]]


@dataclass(frozen=True, slots=True)
class PatternCounts:
    """How many patterns have each state; those that are `muted_but_firing` are `muted`, too."""

    all: int
    open: int
    acknowledged: int
    snoozed: int
    muted: int
    muted_but_firing: int
    ended: int
    resolved: int
    not_a_loop: int

    @property
    def is_capped(self) -> bool:
        """Whether counting stopped early: never."""
        return False


def state_counts(project_id: int, query: ListQuery = ALL_PATTERNS) -> PatternCounts:
    """Count patterns by state under the query of the list, except its terms of the field `is`; two queries."""
    matching = _matching(project_id, query.condition(without=("is",)))
    rows = with_state(project_id).filter(pk__in=matching.values("pattern")).order_by()
    found = dict.fromkeys(STATES, 0) | dict(rows.values_list("state").annotate(Count("pk")))
    firing = firing_mutes(timezone.now()).filter(project_id=project_id).values("pattern")
    muted_but_firing = rows.filter(pk__in=firing).count() if found["muted"] else 0
    return PatternCounts(all=sum(found.values()), muted_but_firing=muted_but_firing, **found)


@dataclass(frozen=True, slots=True)
class PatternBadges:
    """How many patterns are open, and how many are muted but firing; each stops at `MAX_IN_NAVIGATION`."""

    open: int
    muted_but_firing: int


def navigation_counts(project_id: int) -> PatternBadges:
    """Count the patterns of the navigation; a query of the active mutes, and one or two bounded ones by index."""
    now = timezone.now()
    muted = [*active_mutes(now).filter(project_id=project_id).values_list("pattern", flat=True)]
    rows = Incident.objects.filter(project_id=project_id, status=IncidentStatus.OPEN, pattern__isnull=False)
    if not muted:
        return PatternBadges(_distinct(rows), 0)
    firing = firing_mutes(now).filter(project_id=project_id)
    return PatternBadges(_distinct(rows.exclude(pattern__in=muted)), _distinct(firing))


def _distinct(rows: QuerySet[Any]) -> int:
    return rows.order_by().values("pattern").distinct()[:MAX_IN_NAVIGATION].count()


def get_pattern(project_id: int, public_id: str) -> Pattern | None:
    """Return a pattern of this project with the person it is assigned to."""
    if "\x00" in public_id:
        return None
    rows = Pattern.objects.select_related("assignee").filter(project_id=project_id)
    return rows.filter(public_id=public_id, incidents__isnull=False).first()


def ids_with_incidents(pattern_ids: Iterable[int]) -> set[int]:
    """Return which of these patterns have incidents, and so a page; one query."""
    left = Incident.objects.filter(pattern=OuterRef("pk"))
    return set(Pattern.objects.filter(Exists(left), pk__in=pattern_ids).values_list("pk", flat=True))


def row_of(pattern: Pattern) -> PatternRow:
    """Return the row of a pattern with the figures of all its incidents; six queries."""
    incidents = Incident.objects.filter(pattern=pattern)
    figures = [_read_figures(row) for row in _figures(incidents)]
    (row,) = _rows(pattern.project_id, figures, incidents)
    return row


@dataclass(frozen=True, slots=True)
class SharedFact:
    """Distribution of the incidents over the values of a field."""

    name: str
    is_shared: Annotated[bool, Shown("Whether all incidents have the same value.")]
    distinct: Annotated[int, Shown("How many different values there are.")]
    values: Annotated[tuple[NameCount, ...], Shown(f"Values, most frequent first, at most {MAX_NAMES}.")]
    total: int


def shared_facts(pattern: Pattern) -> dict[str, SharedFact]:
    """Return what the incidents of a pattern share; one query for each of `SHARED_FACTS`.

    The tools of a pattern are shared by definition: where several detectors found a cycle, some name one of its tools.
    """
    facts: dict[str, SharedFact] = {}
    rows = Incident.objects.filter(pattern=pattern).order_by()
    total = rows.count()
    for name in SHARED_FACTS:
        if name == "tool" and pattern.tool:
            facts[name] = SharedFact(name, True, 1, (NameCount(pattern.tool, total),), total)
            continue
        counted = rows.exclude(**{name: ""}).values_list(name).annotate(number=Count("pk"))
        values = tuple(NameCount(*one) for one in counted.order_by("-number", name)[:MAX_NAMES])
        distinct = len(values) if len(values) < MAX_NAMES else rows.values(name).distinct().count()
        is_shared = distinct == 1 and values[0].incidents == total
        facts[name] = SharedFact(name, is_shared, distinct, values, total)
    return facts


def arguments_of(pattern: Pattern, loop_ids: Iterable[str]) -> dict[str, str]:
    """Return the arguments of the calls of loops, as the evidence of one incident has them; a query by index for each.

    Loops whose arguments are not stored are missing.
    """
    found: dict[str, str] = {}
    for loop_id in loop_ids:
        rows = Incident.objects.filter(
            project=pattern.project_id, pattern=pattern, loop_id=loop_id
        ).order_by()
        for evidence in rows.values_list("evidence", flat=True)[:1]:
            calls = evidence.get("calls", ())
            # The last call may be one that tried others.
            for (_, arguments), _ in Counter(
                (call.get("call_key"), call.get("arguments")) for call in calls
            ).most_common(1):
                if arguments:
                    found[loop_id] = arguments
    return found
