"""The statuses of loops as query conditions on loops and incidents. `Loop` describes them."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.lookups import IsNull

from detection.models import AlertSilence, Incident, Loop, LoopStatus
from detection.models.incidents import IS_LOOP, IncidentLabel, IncidentStatus


def active_postponements(now: datetime) -> QuerySet[AlertSilence]:
    """Return the postponements of all projects that are active at a time."""
    return AlertSilence.objects.filter(loop__isnull=False, starts_at__lte=now, ends_at__gt=now)


def firing_postponements(now: datetime) -> QuerySet[AlertSilence]:
    """Return the active postponements whose loops were detected since."""
    since = Incident.objects.filter(
        project=OuterRef("project"), loop=OuterRef("loop"), last_seen_at__gt=OuterRef("starts_at")
    )
    return active_postponements(now).filter(Exists(since))


def status_condition(status: LoopStatus, now: datetime) -> Q:
    """Return the condition of loops with a status."""
    wanted, earlier = Q(pk__in=()), Q()
    for one, condition in (*conditions(now), (LoopStatus.DONE, Q())):
        if one == status:
            wanted |= earlier & condition
        earlier &= ~condition
    return wanted


def conditions(now: datetime) -> list[tuple[LoopStatus, Q]]:
    """Return the conditions of the statuses, in order of precedence; `done` has none of its own."""
    own = {"project": OuterRef("project"), "loop": OuterRef("pk")}

    is_open = Q(Exists(Incident.objects.filter(status=IncidentStatus.OPEN, **own)))
    # A subquery of one row by index; for `Exists`, the database would read the incidents of all loops.
    a_loop = Subquery(Incident.objects.filter(IS_LOOP, **own).order_by().values("pk")[:1])
    return [
        (LoopStatus.LATER, Q(Exists(active_postponements(now).filter(**own)))),
        (LoopStatus.OPEN, is_open),
        (LoopStatus.FINE, Q(label=IncidentLabel.FALSE_ALARM) | Q(IsNull(a_loop, True))),
    ]


def has_status(status: LoopStatus, now: datetime) -> Q:
    """Return the condition of incidents whose loop has a status; evaluated once per loop."""
    rows = Loop.objects.filter(project=OuterRef("project"), pk=OuterRef("loop"))
    return Q(Exists(rows.filter(status_condition(status, now))))


def is_later_but_firing(now: datetime) -> Q:
    """Return the condition of incidents whose loop is put off and was detected since."""
    return Q(Exists(firing_postponements(now).filter(project=OuterRef("project"), loop=OuterRef("loop"))))
