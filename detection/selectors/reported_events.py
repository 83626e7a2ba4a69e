"""How many events a project usually reports, and whether that is exceeded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from detection import clock
from detection.models import Project, ReportedHour

USUAL_DAYS: Final = 7
FACTOR: Final = 10
"""How many times the usual rate is a spike. A judgement: releases and busy days stay below it."""
LEAST_PER_MINUTE: Final = 3_000
"""Below it nothing is a spike: less than a hundredth of what one machine stores and evaluates (docs/benchmarks.md)."""
SPIKE_LASTS: Final = timedelta(minutes=2)
"""How long after the limit was exceeded a page says so: a minute that is not over may still exceed it."""


@dataclass(frozen=True, slots=True)
class ReportedEvents:
    """The rate of a project's reports, and what became of those above its limit in the last 24 hours.

    Attributes
    ----------
    usual_per_minute
        See `usual_per_minute`; None in the first days.
    limit_per_minute
        None for no limit.
    spiked_at
        When the rate was last above the limit.
    is_spiking
        Whether it still is.
    rejected_requests, sampled_events
        Requests that were answered with 429, and events that were not stored.
    """

    usual_per_minute: float | None
    limit_per_minute: float | None
    spiked_at: datetime | None
    is_spiking: bool
    rejected_requests: int
    sampled_events: int


def usual_per_minute(project_id: int) -> float | None:
    """Return the mean rate of the busiest hour of a usual day: the median of the seven days (UTC) before today.

    So one day changes it little, and a spike only if it lasts for half of them. None without a day with reports. Costs
    one query of at most 168 rows.
    """
    today = clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    rows = ReportedHour.objects.filter(
        project_id=project_id, hour__lt=today, hour__gte=today - timedelta(days=USUAL_DAYS)
    )
    busiest: defaultdict[object, int] = defaultdict(int)
    for hour, events in rows.values_list("hour", "events"):
        busiest[hour.date()] = max(busiest[hour.date()], events)
    return median(busiest.values()) / 60 if busiest else None


def limit_per_minute(usual: float | None, fixed: int) -> float | None:
    """Return from how many events in a minute on a rate is a spike.

    Parameters
    ----------
    usual
        What `usual_per_minute` returns.
    fixed
        The limit that the project sets; 0 for `FACTOR` times the usual rate.

    Returns
    -------
    float or None
        None while the usual rate is not known.
    """
    if fixed:
        return float(fixed)
    return None if usual is None else max(FACTOR * usual, float(LEAST_PER_MINUTE))


def reported_events(project: Project) -> ReportedEvents:
    """Return the rate of a project's reports; two queries."""
    now = clock.now()
    hours = ReportedHour.objects.filter(project_id=project.pk, hour__gt=now - timedelta(hours=25))
    rows = list(hours.values_list("spiked_at", "rejected", "sampled"))
    spiked_at = max((at for at, _, _ in rows if at), default=None)
    usual = usual_per_minute(project.pk)
    return ReportedEvents(
        usual,
        limit_per_minute(usual, project.spike_limit),
        spiked_at,
        spiked_at is not None and now - spiked_at < SPIKE_LASTS,
        sum(rejected for _, rejected, _ in rows),
        sum(sampled for _, _, sampled in rows),
    )
