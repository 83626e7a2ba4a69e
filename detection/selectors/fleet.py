"""All projects at a glance: what loops in each now, what it costs, and the loops that several of them have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Count, Sum

from detection.models import Incident, Session
from detection.models.incidents import IS_LOOP
from detection.selectors.approvals import count_waiting
from detection.selectors.dashboard import looping_sessions
from detection.selectors.loops import navigation_counts
from detection.selectors.now import moment

SILENT_AFTER: Final = timedelta(days=1)
"""A project without a call for so long is not receiving; agents that work by day are silent at night. A judgement."""
MAX_SHARED: Final = 5
"""Loops of several projects that are listed, the most expensive ones; the rest are in the projects."""


@dataclass(frozen=True, slots=True)
class ProjectNow:
    """What happens in a project now.

    Attributes
    ----------
    looping, held, open_loops
        As the navigation of the project counts them.
    usd_per_minute, calls_per_minute
        Of the looping sessions, over the last five minutes.
    last_event_at
        None without a session.
    """

    looping: int
    held: int
    open_loops: int
    usd_per_minute: float
    calls_per_minute: float
    last_event_at: datetime | None

    def is_receiving(self, now: datetime) -> bool:
        """Return whether a call came in lately."""
        return self.last_event_at is not None and now - self.last_event_at < SILENT_AFTER


@dataclass(frozen=True, slots=True)
class SharedLoop:
    """A detector's loops of one tool in several projects.

    Attributes
    ----------
    project_ids
        The most expensive first.
    """

    kind: str
    tool: str
    project_ids: tuple[int, ...]
    agents: int
    runs: int
    cost_usd: float


def project_now(project_id: int) -> ProjectNow:
    """Return what happens in a project; six bounded queries, and seven more while something loops."""
    looping = looping_sessions(project_id)
    burning = moment(project_id) if looping else None
    events = Session.objects.filter(project_id=project_id).order_by("-last_event_at")
    return ProjectNow(
        looping,
        count_waiting(project_id),
        navigation_counts(project_id).open,
        burning.usd_per_minute if burning else 0.0,
        burning.calls_per_minute if burning else 0.0,
        events.values_list("last_event_at", flat=True).first(),
    )


def shared_loops(project_ids: Collection[int], start: datetime, end: datetime) -> list[SharedLoop]:
    """Return the loops that began in a time in more than one project, the most expensive first; two queries."""
    loops = Incident.objects.filter(
        IS_LOOP, project_id__in=project_ids, opened_at__gte=start, opened_at__lt=end
    ).exclude(tool="")
    found = loops.order_by().values_list("kind", "tool").annotate(projects=Count("project_id", distinct=True))
    several = found.filter(projects__gt=1).annotate(
        agents=Count("agent", distinct=True), runs=Count("pk"), cost=Sum("cost_usd")
    )
    rows = [*several.order_by("-cost", "-runs", "tool", "kind")[:MAX_SHARED]]
    each = loops.filter(tool__in=[row[1] for row in rows]).order_by()
    costs = each.values_list("kind", "tool", "project_id").annotate(Sum("cost_usd"), Count("pk"))
    places: dict[tuple[str, str], list[tuple[float, int, int]]] = {}
    for kind, tool, project_id, cost, count in costs:
        places.setdefault((kind, tool), []).append((-float(cost or 0), -count, project_id))
    return [
        SharedLoop(
            kind, tool, tuple(one[2] for one in sorted(places[kind, tool])), agents, runs, float(cost or 0)
        )
        for kind, tool, _, agents, runs, cost in rows
    ]
