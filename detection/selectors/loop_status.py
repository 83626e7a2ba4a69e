"""The states of loops as query conditions on loops and incidents. `Loop` describes the states."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.lookups import IsNull

from detection.models import AlertSilence, Incident, Loop, LoopStatus
from detection.models.incidents import IS_LOOP, IncidentLabel, IncidentStatus

_STATUSES = {
    LoopStatus.OPEN: IncidentStatus.OPEN,
    LoopStatus.ACKNOWLEDGED: IncidentStatus.ACKNOWLEDGED,
    LoopStatus.SNOOZED: IncidentStatus.SNOOZED,
}


def active_mutes(now: datetime) -> QuerySet[AlertSilence]:
    """Return the mutes of all projects that are active at a time."""
    return AlertSilence.objects.filter(loop__isnull=False, starts_at__lte=now, ends_at__gt=now)


def firing_mutes(now: datetime) -> QuerySet[AlertSilence]:
    """Return the active mutes whose loops were detected since."""
    since = Incident.objects.filter(
        project=OuterRef("project"), loop=OuterRef("loop"), last_seen_at__gt=OuterRef("starts_at")
    )
    return active_mutes(now).filter(Exists(since))


def state_condition(state: LoopStatus, now: datetime) -> Q:
    """Return the condition of loops in a state."""
    wanted = Q()
    for one, condition in conditions(now):
        if one == state:
            return wanted & condition
        wanted &= ~condition
    return wanted


def conditions(now: datetime) -> list[tuple[LoopStatus, Q]]:
    """Return the condition of each state, in order of precedence; `ended` has no condition of its own."""
    own = {"project": OuterRef("project"), "loop": OuterRef("pk")}
    at_work = [
        (state, Q(Exists(Incident.objects.filter(status=status.value, **own))))
        for state, status in _STATUSES.items()
    ]
    # A subquery of one row by index; for `Exists`, the database would read the incidents of all loops.
    a_loop = Subquery(Incident.objects.filter(IS_LOOP, **own).order_by().values("pk")[:1])
    return [
        (LoopStatus.MUTED, Q(Exists(active_mutes(now).filter(**own)))),
        *at_work,
        (
            LoopStatus.NOT_A_LOOP,
            Q(label=IncidentLabel.FALSE_ALARM) | Q(IsNull(a_loop, True)),
        ),
        (LoopStatus.RESOLVED, Q(resolved_at__isnull=False)),
    ]


def has_state(state: LoopStatus, now: datetime) -> Q:
    """Return the condition of incidents whose loop is in a state; evaluated once per loop."""
    rows = Loop.objects.filter(project=OuterRef("project"), pk=OuterRef("loop"))
    return Q(Exists(rows.filter(state_condition(state, now))))


def is_muted_but_firing(now: datetime) -> Q:
    """Return the condition of incidents whose loop is muted and was detected since."""
    return Q(Exists(firing_mutes(now).filter(project=OuterRef("project"), loop=OuterRef("loop"))))
