"""Reads the runs of a loop for its page: the newest, how many began when, and the sessions that are in it now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final

from django.conf import settings
from django.db.models import Case, CharField, Count, F, Func, IntegerField, Q, Sum, Value, When
from django.utils import timezone

from detection.engine.scopes import Scope
from detection.integrations.reach import WATCH_ONLY
from detection.models import AuditEntry, Incident, Loop, Notification, Session
from detection.models.incidents import IS_LOOP, IncidentLabel
from detection.models.session_state import CALLING_STATES, SessionState
from detection.selectors.statistics import SAVED

MAX_RUNS: Final = 50
"""Newest runs among which the clearest is searched; a judgement."""
MAX_LOOPING: Final = 200
"""As on the page Now."""
MAX_BARS: Final = 24
BAR_WIDTHS: Final = tuple(
    timedelta(minutes=minutes) for minutes in (1, 5, 15, 30, 60, 180, 360, 720, 1440, 10_080, 43_200)
)
"""Widths of the bars; the narrowest with at most `MAX_BARS` is taken."""
MAX_CHANGES: Final = 5
POLICY_ACTIONS: Final = ("policy.save", "policy.tool_rule")
LOOPING, HELD, STOPPED, WENT_ON = "looping", "held", "stopped", "went_on"


def newest_runs(loop: Loop, limit: int = MAX_RUNS) -> list[Incident]:
    """Return the runs of a loop that were seen last, with their sessions, without their evidence; one query."""
    rows = Incident.objects.filter(project_id=loop.project_id, loop=loop).select_related("session")
    return [*rows.defer("evidence", "policy", "findings").order_by("-last_seen_at", "-id")[:limit]]


def clearest(runs: Iterable[Incident]) -> Incident | None:
    """Return the run with the most calls, rather one that nobody called fine, and of equal ones the newest."""
    order = [*runs]
    return max(
        order, key=lambda one: (one.label != IncidentLabel.FALSE_ALARM, one.calls_in_loop), default=None
    )


def beside(run: Incident) -> tuple[str, str]:
    """Return the ids of the runs of the same loop before and after this one as the list has them; two queries."""
    rows = Incident.objects.filter(project_id=run.project_id, loop=run.loop_id)
    at, pk = run.last_seen_at, run.pk
    newer = rows.filter(Q(last_seen_at__gt=at) | Q(last_seen_at=at, pk__gt=pk)).order_by("last_seen_at", "id")
    older = rows.filter(Q(last_seen_at__lt=at) | Q(last_seen_at=at, pk__lt=pk)).order_by(
        "-last_seen_at", "-id"
    )
    before, after = (one.values_list("public_id", flat=True).first() or "" for one in (newer, older))
    return before, after


def looping_sessions(loop: Loop) -> list[Session]:
    """Return the sessions that are in the loop now, the costliest first; one query."""
    now = timezone.now()
    looping = Incident.objects.filter(
        IS_LOOP, project_id=loop.project_id, loop=loop, ended_at=None,
        last_seen_at__gt=now - settings.LOOPING_FOR, session__isnull=False,
    )  # fmt: skip
    rows = Session.objects.filter(project_id=loop.project_id, pk__in=looping.values("session"))
    return [*rows.filter(ended_at=None, stopped_by_kind="").order_by("-cost_usd", "-pk")[:MAX_LOOPING]]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What the runs of a loop come to.

    Attributes
    ----------
    recovered
        Runs whose agent got out of the loop.
    saved
        What the blocked calls would have cost about, in US dollars; 0 if unknown.
    reaches
        How many of its sessions have each reach; of those that are stored still.
    """

    recovered: int
    saved: float
    reaches: Counter[str]


def figures(loop: Loop) -> RunFigures:
    """Count; two queries."""
    rows = Incident.objects.filter(project_id=loop.project_id, loop=loop).order_by()
    sums = rows.aggregate(recovered=Count("pk", filter=Q(recovered=True)), saved=Sum(SAVED))
    reaches = Session.objects.filter(project_id=loop.project_id, pk__in=rows.values("session")).order_by()
    counted = reaches.values_list("reach").annotate(Count("pk"))
    return RunFigures(sums["recovered"], sums["saved"] or 0.0, Counter(dict(counted)))


@dataclass(frozen=True, slots=True)
class RunBars:
    """When the runs of a loop began, and what became of them.

    Attributes
    ----------
    start, width
        The first bar and the time that each stands for.
    bars
        By bar, how many are `LOOPING`, `HELD`, `STOPPED` or `WENT_ON`.
    """

    start: datetime
    width: timedelta
    bars: tuple[Mapping[str, int], ...]


def bars_of(loop: Loop, first: datetime) -> RunBars:
    """Count the runs of a loop by the time at which they began; one query.

    Parameters
    ----------
    first
        When the first one began.
    """
    now = timezone.now()
    width = next(
        (one for one in BAR_WIDTHS if (now - first) / one <= MAX_BARS - 1), (now - first) / (MAX_BARS - 1)
    )
    seconds = width.total_seconds()
    start = first - timedelta(seconds=first.timestamp() % seconds)
    number = max(1, int((now - start) / width) + 1)
    place = Func(
        F("opened_at") - Value(start),
        template=f"floor(extract(epoch FROM %(expressions)s) / {seconds:.3f})::int",
        output_field=IntegerField(),
    )
    looping = IS_LOOP & Q(
        ended_at=None, last_seen_at__gt=now - settings.LOOPING_FOR, session__state__in=CALLING_STATES
    )
    # Whether its session is stopped or has ended by the stop: the newest call was blocked.
    refused = (
        ~Q(session__stopped_by_kind="")
        & Q(session__refused_since_stop__gt=0, session__has_run_last=False)
        & (Q(ended_at=None) | Q(ended_at__gte=F("session__stopped_at")))
    )
    # Whether it was asked to stop, and neither ran what was refused nor did something else.
    obeyed = Q(decision="stop", was_guarded=True, calls_blocked__gt=0) & ~Q(recovered=True)
    fate = Case(
        When(IS_LOOP & Q(ended_at=None, session__state=SessionState.HELD), then=Value(HELD)),
        When(looping, then=Value(LOOPING)),
        When((obeyed & ~Q(session__seen_reach=WATCH_ONLY)) | refused, then=Value(STOPPED)),
        default=Value(WENT_ON),
        output_field=CharField(),
    )
    rows = Incident.objects.filter(project_id=loop.project_id, loop=loop).order_by()
    bars: list[dict[str, int]] = [{} for _ in range(number)]
    for at, kind, count in (
        rows.annotate(place=place, fate=fate).values_list("place", "fate").annotate(Count("pk"))
    ):
        bar = bars[min(max(at, 0), number - 1)]
        bar[kind] = bar.get(kind, 0) + count
    return RunBars(start, width, tuple(bars))


def policy_changes(
    loop: Loop, since: datetime, agents: Iterable[str], models: Iterable[str]
) -> list[AuditEntry]:
    """Return the newest changes of policies that apply to a loop, the newest first; one query."""
    rows = AuditEntry.objects.filter(project_id=loop.project_id, at__gte=since, action__in=POLICY_ACTIONS)
    named = {f"agent:{name}" for name in agents} | {"project", "server"}
    known = {*models}
    found = [
        entry
        for entry in rows.order_by("-at", "-id")[:MAX_RUNS]
        if entry.subject in named
        or (entry.subject.startswith("tool:") and _is_of_tool(entry.subject, loop.tool))
        or (entry.subject.startswith("model:") and entry.subject.partition("/")[2] in known)
    ]
    return found[:MAX_CHANGES]


def _is_of_tool(subject: str, tool: str) -> bool:
    return bool(tool) and fnmatchcase(tool, Scope.parse(subject).pattern)


def notifications_of(loop: Loop) -> list[Notification]:
    """Return the newest notifications about a loop, the newest first; one query."""
    rows = Notification.objects.filter(
        project_id=loop.project_id, items__event__incident__loop=loop, is_test=False
    )
    return [*rows.select_related("destination").distinct().order_by("-id")[:MAX_CHANGES]]


def reaches_of(sessions: Iterable[Session]) -> Counter[str]:
    """Count sessions by their reach."""
    return Counter(one.reach for one in sessions)
