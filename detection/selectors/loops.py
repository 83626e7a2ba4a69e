"""Reads loops with their figures, which are counted from the incidents, for the API and the screens alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict

from django.conf import settings
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
from detection.engine.loop_identity import title
from detection.models import AlertSilence, Incident, Loop, LoopActivity, LoopForm, LoopStatus
from detection.models.incidents import IS_LOOP, IncidentLabel, IncidentStatus
from detection.models.session_state import CALLING_STATES, SessionState
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import LOOPS
from detection.selectors.loop_status import active_postponements, conditions, firing_postponements
from detection.selectors.pages import Page, cut
from detection.selectors.row_fields import Shown

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

STATUSES: Final = tuple(LoopStatus.values)
TREND_BUCKETS: Final = 24
TREND_SPAN: Final = timedelta(days=1)
TREND_DAYS: Final = 30
MAX_NAMES: Final = 50
_OF_LOOPS: Final = ("is", "owner", "assigned")
"""Fields of the filter language that select loops; all others select incidents."""
MAX_IN_NAVIGATION: Final = 1000
MAX_CHANGES: Final = 50
SHARED_FACTS: Final = ("tool", "agent", "model", "backend", "calls_digest", "session_name")


ALL_LOOPS = list_query(LOOPS)
"""Every loop, those seen last first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponement:
    """Until when a loop is put off."""

    # fmt: off
    reason: Annotated[str, Shown("The reason.")]
    by: Annotated[str, Shown("Who put it off: a user name or `key:<id>`.")]
    starts_at: Annotated[datetime, Shown("When it was put off.")]
    ends_at: Annotated[datetime, Shown("When it comes back at the latest.")]
    baseline: Annotated[int | None, Shown(
        "More new incidents than this in 24 hours bring it back. Null if only the time does.",
    )]
    incidents: Annotated[int, Shown("How many incidents have been detected since.")]
    # fmt: on


class NameCount(NamedTuple):
    """A value and how many incidents have it."""

    name: Annotated[str, Shown("The value.")]
    incidents: Annotated[int, Shown("Number of incidents.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRow:
    """A loop as lists and exports show it; figures are of the incidents that match the filters.

    Attributes
    ----------
    cost_note
        Why it has no cost of its own: ``shared``, if incidents of other loops found all its calls first, or
        ``not a loop``, if all incidents have that label. Empty for others.
    """

    # fmt: off
    id: int
    public_id: Annotated[str, Shown("Id of the loop.", name="id")]
    title: Annotated[str, Shown("Description in a few words.")]
    kind: Annotated[str, Shown("Detector.")]
    tool: Annotated[str, Shown(
        "The tool, or the tools of a cycle. Empty for loops of several tools and for budgets.",
    )]
    program: Annotated[str, Shown("Program of the shell command. Empty for other tools.")]
    results: Annotated[str, Shown("`errors`, `empty`, or empty for all other results.")]
    detail: Annotated[str, Shown("The provider's problem, or the unit of the budget.")]
    status: Annotated[str, Shown("Status.", choices=LoopStatus)]
    form: Annotated[str, Shown(
        "More about the status: of an open loop `looping_now`, `returned`, `held` (a session in it waits for an "
        "answer), `new` or `went_silent`, of one that is done `ended_by_itself`.", choices=LoopForm,
    )]
    has_returned: Annotated[bool, Shown("Whether it was closed and has reopened.")]
    label: Annotated[str, Shown(
        "`true_loop` or `false_alarm`, if a person labelled the loop; `false_alarm` also if each of its incidents "
        "has that label.", is_optional=True,
    )]
    assignee: Annotated[str | None, Shown("User name of the person it is assigned to.")]
    later: Annotated[Postponement | None, Shown("Until when it is put off.")]
    incidents: Annotated[int, Shown("Number of incidents.")]
    open_incidents: Annotated[int, Shown("Number of open incidents.")]
    looping_now: Annotated[int, Shown("Sessions with a call of the loop in the last 2 minutes.")]
    sessions: Annotated[int, Shown("Number of sessions.")]
    first_seen_at: Annotated[datetime, Shown("When its first incident was opened.")]
    last_seen_at: Annotated[datetime, Shown("When it was last detected.")]
    done_at: Annotated[datetime | None, Shown("When a person last closed it.")]
    calls_in_loop: Annotated[int, Shown("Calls that belong to the loops, each counted once.")]
    calls_blocked: Annotated[int, Shown("Blocked calls.")]
    cost_usd: Annotated[Decimal, Shown(
        "Cost of its incidents without those labelled false alarms, in US dollars.",
    )]
    cost_note: str
    found_by: Annotated[tuple[str, ...], Shown("Detectors that found its incidents, most frequent first.")]
    agents: Annotated[tuple[NameCount, ...], Shown("Agents, most frequent first.")]
    models: Annotated[tuple[NameCount, ...], Shown("Models, most frequent first.")]
    trend: Annotated[tuple[int, ...], Shown("Incidents opened in each of the last 24 hours, oldest first.")]
    # fmt: on

    @property
    def is_later_but_firing(self) -> bool:
        """Whether incidents were detected since it was put off."""
        return self.later is not None and self.later.incidents > 0


class WithStatus(TypedDict):
    """The status that `with_status` adds."""

    status: str


def with_status(project_id: int) -> QuerySet[WithAnnotations[Loop, WithStatus]]:
    """Return the loops of a project with their `status`."""
    now = timezone.now()
    cases = [When(condition, then=Value(status.value)) for status, condition in conditions(now)]
    status = Case(*cases, default=Value(LoopStatus.DONE.value), output_field=CharField())
    return Loop.objects.filter(project_id=project_id).annotate(status=status)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures counted from the incidents of a loop; `id` is the loop's, the last two are only read to sort by."""

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
    loop_tool: str = ""
    loop_owner: str = ""


def list_loops(
    project_id: int, query: ListQuery = ALL_LOOPS, cursor: str = "", limit: int = 50
) -> Page[LoopRow]:
    """List a project's loops with the figures of the matching incidents.

    `query` is of the list `LOOPS`, and `limit` 1 to 500. `BadCursor` for a cursor of another list.
    Seven queries, one of which groups the matching incidents.
    """
    figures, by = _figures(_matching(project_id, query.condition())), query.order.key.column
    if by in _NAMES_TO_SORT_BY:
        figures = figures.annotate(**{by: Coalesce(Min(_NAMES_TO_SORT_BY[by]), Value(""))})
    rows = query.order.page(figures, cursor, "loop_id")
    found = [_read_figures(row) for row in rows[: limit + 1]]
    page = cut(found, limit, query.order.cursor)
    # The loops of the page are known, so their state need not be found again.
    counted = _matching(project_id, query.condition(without=_OF_LOOPS))
    return Page(tuple(_rows(project_id, page.items, counted)), page.next_cursor)


_NAMES_TO_SORT_BY = {"loop_tool": "loop__tool", "loop_owner": "loop__assignee__username"}


def _read_figures(row: dict[str, Any]) -> Figures:
    return Figures(id=row.pop("loop_id"), **row)


def _matching(project_id: int, condition: Q) -> QuerySet[Incident]:
    return Incident.objects.filter(condition, project_id=project_id)


def _figures(incidents: QuerySet[Incident]) -> Any:
    """Group incidents by loop; the columns are those of `Figures`."""
    return (
        incidents.order_by()
        .values("loop_id")
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


def _rows(project_id: int, figures: Sequence[Figures], incidents: QuerySet[Incident]) -> list[LoopRow]:
    """Complete the figures of loops to rows; six queries."""
    ids = [row.id for row in figures]
    loops = {row.pk: row for row in with_status(project_id).select_related("assignee").filter(pk__in=ids)}
    now = timezone.now()
    # A session that was stopped is not in the loop any more, however lately it called.
    looping = IS_LOOP & Q(
        ended_at=None, last_seen_at__gt=now - settings.LOOPING_FOR, session__state__in=CALLING_STATES
    )
    held = IS_LOOP & Q(ended_at=None, session__state=SessionState.HELD)
    # Of a session that has ended or was stopped, nothing continues that could be silent.
    in_loop = IS_LOOP & Q(ended_at=None, session__state=SessionState.LOOPING)
    open_of = {
        loop: (open_, looping_now, held, in_loop)
        for loop, open_, looping_now, held, in_loop in Incident.objects.filter(
            project_id=project_id, status=IncidentStatus.OPEN, loop__in=ids
        )
        .order_by()
        .values_list("loop_id")
        .annotate(
            open_=Count("pk"),
            looping_now=Count("session_name", filter=looping, distinct=True),
            held=Count("pk", filter=held),
            in_loop=Count("pk", filter=in_loop),
        )
    }
    agents, models = _names(incidents.filter(loop__in=ids))
    kinds = _kinds(incidents.filter(loop__in=ids))
    trends, later = _trends(project_id, ids), _postponements(project_id, ids)
    acted = LoopActivity.objects.filter(project_id=project_id, loop__in=ids)
    # What was undone did not happen.
    touched = set(acted.filter(reverts=None, reverted_by=None).values_list("loop", flat=True))
    found = []
    for row in figures:
        if (loop := loops.get(row.id)) is None:
            continue
        own, (open_incidents, looping_now, held_incidents, in_loop_incidents) = (
            {name: getattr(loop, name) for name in _OWN},
            open_of.get(loop.pk, (0, 0, 0, 0)),
        )
        if loop.status == LoopStatus.FINE:
            own["label"] = IncidentLabel.FALSE_ALARM
        is_closed = loop.done_at is not None or own["label"] == IncidentLabel.FALSE_ALARM
        without_calls = "shared" if row.calls_found else "" if row.loops else "not a loop"
        found.append(
            LoopRow(
                **own,
                title=title(detector_for(loop.kind).headline, loop.tool, loop.program, loop.detail),
                has_returned=is_closed and open_incidents > 0,
                assignee=loop.assignee.get_username() if loop.assignee else None,
                incidents=row.incidents,
                sessions=row.sessions,
                open_incidents=open_incidents,
                looping_now=looping_now,
                form=_form(
                    loop,
                    has_returned=is_closed and open_incidents > 0,
                    is_looping=looping_now > 0,
                    is_held=held_incidents > 0,
                    is_in_loop=in_loop_incidents > 0,
                    is_new=loop.pk not in touched,
                ),
                first_seen_at=row.first_seen,
                last_seen_at=row.last_seen,
                cost_usd=row.cost,
                calls_in_loop=row.calls,
                cost_note="" if row.calls else without_calls,
                calls_blocked=row.blocked,
                found_by=kinds.get(loop.pk, (loop.kind,)),
                agents=agents.get(loop.pk, ()),
                models=models.get(loop.pk, ()),
                trend=trends[loop.pk],
                later=later.get(loop.pk),
            )
        )
    return found


def _form(
    loop: WithAnnotations[Loop, WithStatus],
    *,
    has_returned: bool,
    is_looping: bool,
    is_held: bool,
    is_in_loop: bool,
    is_new: bool,
) -> LoopForm:
    if loop.status == LoopStatus.DONE:
        return LoopForm.NONE if loop.done_at else LoopForm.ENDED_BY_ITSELF
    if loop.status != LoopStatus.OPEN:
        return LoopForm.NONE
    if is_looping:
        return LoopForm.LOOPING_NOW
    if has_returned:
        return LoopForm.RETURNED
    if is_held:
        return LoopForm.HELD
    if is_new:
        return LoopForm.NEW
    return LoopForm.WENT_SILENT if is_in_loop else LoopForm.NONE


_OWN: Final = (
    "id",
    "public_id",
    "kind",
    "tool",
    "program",
    "results",
    "detail",
    "status",
    "label",
    "done_at",
)
"""Fields of a row that the loop has under the same names."""
_Names = dict[int, tuple[NameCount, ...]]


def _most_first(named: tuple[str, int]) -> tuple[int, str]:
    return -named[1], named[0]


def _names(incidents: QuerySet[Incident]) -> tuple[_Names, _Names]:
    """Count the agents and the models of loops; one query."""
    agents: defaultdict[int, Counter[str]] = defaultdict(Counter)
    models: defaultdict[int, Counter[str]] = defaultdict(Counter)
    rows = incidents.order_by().values_list("loop_id", "agent", "model").annotate(Count("pk"))
    for loop, agent, model, number in rows:
        agents[loop][agent] += number
        models[loop][model] += number

    def named(counted: dict[int, Counter[str]]) -> _Names:
        return {
            loop: tuple(
                NameCount(*one) for one in sorted(names.items(), key=_most_first)[:MAX_NAMES] if one[0]
            )
            for loop, names in counted.items()
        }

    return named(agents), named(models)


def _kinds(incidents: QuerySet[Incident]) -> dict[int, tuple[str, ...]]:
    """Return the detectors that found the incidents of loops, most frequent first; one query."""
    counted: defaultdict[int, Counter[str]] = defaultdict(Counter)
    rows = incidents.order_by().values_list("loop_id", "kind", "kinds").annotate(Count("pk"))
    for loop, acted, kinds, number in rows:
        for kind in dict.fromkeys((acted, *kinds)):
            counted[loop][kind] += number
    return {
        loop: tuple(name for name, _ in sorted(names.items(), key=_most_first))
        for loop, names in counted.items()
    }


def trend_by_day(loop: Loop) -> tuple[int, ...]:
    """Count the incidents that opened in each of the last `TREND_DAYS` days, oldest first; one query."""
    return _trends(loop.project_id, [loop.pk], timedelta(days=TREND_DAYS), TREND_DAYS)[loop.pk]


def _trends(
    project_id: int, loop_ids: Sequence[int], span: timedelta = TREND_SPAN, buckets: int = TREND_BUCKETS
) -> dict[int, tuple[int, ...]]:
    """Count the incidents that opened in each part of the time until now, such as each hour of a day; one query."""
    now = timezone.now()
    start, width = now - span, span / buckets
    found: dict[int, list[int]] = {loop: [0] * buckets for loop in loop_ids}
    place = Func(
        F("opened_at") - Value(start),
        template=f"floor(extract(epoch FROM %(expressions)s) / {width.total_seconds():.0f})::int",
        output_field=IntegerField(),
    )
    rows = Incident.objects.filter(
        project_id=project_id, loop__in=loop_ids, last_seen_at__gt=start, opened_at__gt=start
    )
    counted = rows.order_by().annotate(place=place).values_list("loop_id", "place").annotate(Count("pk"))
    for loop, at, number in counted:
        found[loop][min(max(at, 0), buckets - 1)] += number
    return {loop: tuple(numbers) for loop, numbers in found.items()}


def _postponements(project_id: int, loop_ids: Sequence[int]) -> dict[int, Postponement]:
    """Return the active postponements of loops with the number of hidden incidents; one query."""
    now = timezone.now()
    since = (
        Incident.objects.filter(
            project_id=project_id, loop=OuterRef("loop"), last_seen_at__gt=OuterRef("starts_at")
        )
        .order_by()
        .values("loop")
        .annotate(number=Count("pk"))
    )
    rows = (
        AlertSilence.objects.filter(
            project_id=project_id, loop__in=loop_ids, starts_at__lte=now, ends_at__gt=now
        )
        .annotate(hidden=Subquery(since.values("number")))
        .order_by("ends_at")
    )
    return {
        row.loop_id: Postponement(
            reason=row.reason,
            by=row.created_by,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            baseline=row.baseline,
            incidents=row.hidden or 0,
        )
        for row in rows
        if row.loop_id is not None
    }


@dataclass(frozen=True, slots=True)
class LoopChange:
    """An open loop that a person has not seen so: why, and the loop."""

    change: str
    loop: LoopRow


def changes_since(project_id: int, since: datetime, limit: int = MAX_CHANGES) -> list[LoopChange]:
    """Return the open loops that are new, returned or worse since a time, those with the newest incident first.

    A loop is worse if more incidents of it opened within 24 hours than in the 24 hours before.

    Parameters
    ----------
    limit
        At most `MAX_CHANGES`; the newest ones.

    Nine queries, the first of which reads the incidents that people still have to deal with.
    """
    now = timezone.now()
    opened = Incident.objects.filter(
        project_id=project_id,
        status=IncidentStatus.OPEN,
        last_seen_at__gt=since,
        opened_at__gt=since,
    )
    newest = opened.order_by().values("loop").annotate(newest=Max("opened_at")).order_by("-newest", "-loop")
    ids = [row["loop"] for row in newest[:limit]]
    incidents = Incident.objects.filter(project_id=project_id, loop__in=ids)
    days = {
        loop: (last, before)
        for loop, last, before in incidents.filter(last_seen_at__gt=now - 2 * TREND_SPAN)
        .order_by()
        .values_list("loop")
        .annotate(
            last=Count("pk", filter=Q(opened_at__gt=now - TREND_SPAN)),
            before=Count("pk", filter=Q(opened_at__gt=now - 2 * TREND_SPAN, opened_at__lte=now - TREND_SPAN)),
        )
    }
    rows = {row.id: row for row in _rows(project_id, [*map(_read_figures, _figures(incidents))], incidents)}
    found = []
    for loop in ids:
        row, (last, before) = rows[loop], days.get(loop, (0, 0))
        change = (
            "returned"
            if row.has_returned
            else "new"
            if row.first_seen_at > since
            else "worse"
            if last > before
            else ""
        )
        if change and row.status == LoopStatus.OPEN:
            found.append(LoopChange(change, row))
    return found


def newest_key(project_id: int) -> int:
    """Return the row id of the newest loop, the bound of an action on all that match; 0 without any."""
    return Loop.objects.filter(project_id=project_id).aggregate(newest=Max("pk"))["newest"] or 0


def matching_keys(project_id: int, query: ListQuery, up_to: int, limit: int) -> list[int]:
    """Return the row ids of the loops that a query selects; not of those that are newer than `up_to`."""
    rows = _matching(project_id, query.condition()).filter(loop__lte=up_to)
    return [*rows.order_by("-loop").values_list("loop", flat=True).distinct()[:limit]]


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """How many loops have each status; those that are `later_but_firing` are `later`, too."""

    all: int
    open: int
    later: int
    later_but_firing: int
    fine: int
    done: int

    @property
    def is_capped(self) -> bool:
        """Whether counting stopped early: never."""
        return False


def status_counts(project_id: int, query: ListQuery = ALL_LOOPS) -> LoopCounts:
    """Count loops by status under the query of the list, except its terms of the field `is`; two queries."""
    matching = _matching(project_id, query.condition(without=("is",)))
    rows = with_status(project_id).filter(pk__in=matching.values("loop")).order_by()
    found = dict.fromkeys(STATUSES, 0) | dict(rows.values_list("status").annotate(Count("pk")))
    firing = firing_postponements(timezone.now()).filter(project_id=project_id).values("loop")
    later_but_firing = rows.filter(pk__in=firing).count() if found["later"] else 0
    return LoopCounts(all=sum(found.values()), later_but_firing=later_but_firing, **found)


@dataclass(frozen=True, slots=True)
class LoopBadges:
    """How many loops are open, and how many are put off but firing; each stops at `MAX_IN_NAVIGATION`."""

    open: int
    later_but_firing: int


def navigation_counts(project_id: int) -> LoopBadges:
    """Count the loops of the navigation; a query of the active postponements, and one or two bounded ones by index."""
    now = timezone.now()
    later = [*active_postponements(now).filter(project_id=project_id).values_list("loop", flat=True)]
    # What is recorded only asks for nothing, so it is listed without a number.
    rows = Incident.objects.filter(project_id=project_id, status=IncidentStatus.OPEN, is_recorded_only=False)
    if not later:
        return LoopBadges(_distinct(rows), 0)
    firing = firing_postponements(now).filter(project_id=project_id)
    return LoopBadges(_distinct(rows.exclude(loop__in=later)), _distinct(firing))


def _distinct(rows: QuerySet[Any]) -> int:
    return rows.order_by().values("loop").distinct()[:MAX_IN_NAVIGATION].count()


def get_loop(project_id: int, public_id: str) -> Loop | None:
    """Return a loop of this project with the person it is assigned to."""
    if "\x00" in public_id:
        return None
    rows = Loop.objects.select_related("assignee").filter(project_id=project_id)
    return rows.filter(public_id=public_id, incidents__isnull=False).first()


def ids_with_incidents(project_id: int, loop_ids: Iterable[int]) -> set[int]:
    """Return which of these loops have incidents, and so a page; one query."""
    left = Incident.objects.filter(loop=OuterRef("pk"))
    rows = Loop.objects.filter(Exists(left), project_id=project_id, pk__in=loop_ids)
    return set(rows.values_list("pk", flat=True))


def row_of(loop: Loop) -> LoopRow:
    """Return the row of a loop with the figures of all its incidents; seven queries."""
    incidents = Incident.objects.filter(loop=loop)
    figures = [_read_figures(row) for row in _figures(incidents)]
    (row,) = _rows(loop.project_id, figures, incidents)
    return row


@dataclass(frozen=True, slots=True)
class SharedFact:
    """Distribution of the incidents over the values of a field."""

    name: str
    is_shared: Annotated[bool, Shown("Whether all incidents have the same value.")]
    distinct: Annotated[int, Shown("How many different values there are.")]
    values: Annotated[tuple[NameCount, ...], Shown(f"Values, most frequent first, at most {MAX_NAMES}.")]
    total: int


def shared_facts(loop: Loop) -> dict[str, SharedFact]:
    """Return what the incidents of a loop share; one query for each of `SHARED_FACTS`.

    The tools of a loop are shared by definition: where several detectors found a cycle, some name one of its tools.
    """
    facts: dict[str, SharedFact] = {}
    rows = Incident.objects.filter(loop=loop).order_by()
    total = rows.count()
    for name in SHARED_FACTS:
        if name == "tool" and loop.tool:
            facts[name] = SharedFact(name, True, 1, (NameCount(loop.tool, total),), total)
            continue
        counted = rows.exclude(**{name: ""}).values_list(name).annotate(number=Count("pk"))
        values = tuple(NameCount(*one) for one in counted.order_by("-number", name)[:MAX_NAMES])
        distinct = len(values) if len(values) < MAX_NAMES else rows.values(name).distinct().count()
        is_shared = distinct == 1 and values[0].incidents == total
        facts[name] = SharedFact(name, is_shared, distinct, values, total)
    return facts


def arguments_of(loop: Loop, calls_digests: Iterable[str]) -> dict[str, str]:
    """Return the arguments of the calls of loops, as the evidence of one incident has them; a query by index for each.

    Loops whose arguments are not stored are missing.
    """
    found: dict[str, str] = {}
    for calls_digest in calls_digests:
        rows = Incident.objects.filter(
            project=loop.project_id, loop=loop, calls_digest=calls_digest
        ).order_by()
        for evidence in rows.values_list("evidence", flat=True)[:1]:
            calls = evidence.get("calls", ())
            # The last call may be one that tried others.
            for (_, arguments), _ in Counter(
                (call.get("call_key"), call.get("arguments")) for call in calls
            ).most_common(1):
                if arguments:
                    found[calls_digest] = arguments
    return found
