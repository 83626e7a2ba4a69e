"""Totals of all projects, for the metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from django.db.models import Count, Sum

from detection.models import CallCount, Incident, JudgeCall
from detection.models.incidents import IS_LOOP
from detection.selectors.lists import OUTCOMES


def judge_calls_by_outcome() -> list[tuple[str, str, int]]:
    """Count the stored consultations of the judge: (project, outcome, number)."""
    rows = JudgeCall.objects.order_by().values_list("project__slug", "outcome").annotate(Count("id"))
    return sorted(rows)


def totals_by_project() -> list[tuple[str, int, int, int, float]]:
    """Return every project's totals of calls since counting began, without demo sessions, for metrics."""
    rows = (
        CallCount.objects.filter(is_demo=False)
        .order_by("project__slug")
        .values_list("project__slug")
        .annotate(Sum("checks"), Sum("warned"), Sum("blocked"), Sum("cost_usd"))
    )
    return [(slug, checks, warned, blocked, float(cost or 0)) for slug, checks, warned, blocked, cost in rows]


def incidents_by_kind() -> list[tuple[str, str, str, int]]:
    """Count every project's incidents by detector and label, without demo sessions, for metrics."""
    rows = (
        Incident.objects.filter(is_demo=False)
        .order_by("project__slug", "kind", "label")
        .values_list("project__slug", "kind", "label")
        .annotate(Count("pk"))
    )
    return [(slug, kind, label or "none", count) for slug, kind, label, count in rows]


MAX_LABEL_VALUES = 50
"""Tools and models with labels of their own in the metrics; the others count as `other`."""


@dataclass(frozen=True, slots=True)
class IncidentTotals:
    """Sums over the incidents of one detector, tool or model in one project."""

    project: str
    name: str
    count: int
    recovered: int
    not_recovered: int
    confidence_sum: float
    loop_calls: int
    loop_cost_usd: float


def incident_totals(by: Literal["kind", "tool", "model"]) -> list[IncidentTotals]:
    """Sum up every project's incidents, without demo sessions, for metrics.

    Returns
    -------
    list of IncidentTotals
        Per project at most `MAX_LABEL_VALUES` names, those with the most incidents, and `other`. One query.
    """
    rows = (
        Incident.objects.filter(is_demo=False)
        .values_list("project__slug", by)
        .annotate(
            number=Count("pk"),
            **{f"number_{name}": Count("pk", filter=condition) for name, condition in OUTCOMES.items()},
            sure=Sum("confidence"), calls=Sum("counted_calls", filter=IS_LOOP), cost=Sum("cost_usd", filter=IS_LOOP),
        )
        .order_by("project__slug", "-number", by)
    )  # fmt: skip
    places: dict[str, int] = defaultdict(int)
    sums: dict[tuple[str, str], list[float]] = {}
    for project, name, *values in rows:
        places[project] += 1
        shown = (name or "unknown") if places[project] <= MAX_LABEL_VALUES else "other"
        own = sums.setdefault((project, shown), [0] * len(values))
        for index, value in enumerate(values):
            own[index] += float(value or 0)
    return [
        IncidentTotals(project, name, int(a), int(b), int(c), d, int(e), f)
        for (project, name), (a, b, c, d, e, f) in sums.items()
    ]
