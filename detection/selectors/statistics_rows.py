"""Counts the rows that numbers of the statistics link to where these count something else: consultations and calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, F, Q, Value
from django.db.models.functions import Trunc
from django.utils import timezone

from detection.models import Incident, JudgeCall, JudgeLabel, Session, SessionTool
from detection.selectors.filters import ListQuery
from detection.selectors.grouped_sums import grouped_sums, one_if
from detection.selectors.lists import SESSIONS
from detection.selectors.statistics import By, Row


@dataclass(frozen=True, slots=True)
class Sessions:
    """How many sessions there are, and how many of them have blocked calls, and calls with a warning."""

    all: int
    blocked: int
    warned: int


def judged_incidents(project_id: int, query: ListQuery) -> dict[str, int]:
    """Count the incidents of a query of `STATISTICS` by the terms `judge` that select them; one query."""
    found = Incident.objects.filter(query.condition(), project_id=project_id)
    counts: dict[str, int] = {}
    consulted = (
        JudgeCall.objects.filter(project_id=project_id, incident__in=found).order_by().values_list("outcome")
    )
    for outcome, count, right, wrong in consulted.annotate(
        Count("incident", distinct=True),
        right=Count("incident", distinct=True, filter=Q(label=JudgeLabel.RIGHT)),
        wrong=Count("incident", distinct=True, filter=Q(label=JudgeLabel.WRONG)),
    ):
        counts |= {
            f"judge:{outcome}": count,
            f"judge:{outcome}_right": right,
            f"judge:{outcome}_wrong": wrong,
        }
    return counts


@dataclass(frozen=True, slots=True)
class SessionsBehind:
    """The sessions whose last event is in the range of a query: all, by the start of an hour or day, and by group.

    A session counts for its latest model and backend, and for every tool that it called.
    """

    total: Sessions
    steps: Mapping[datetime, Sessions]
    groups: Mapping[tuple[str, ...], Sessions]


def sessions_behind(
    project_id: int, query: ListQuery, by: By, step: By, shown: Iterable[Row]
) -> SessionsBehind | None:
    """Count the sessions behind the calls of a query of `STATISTICS`; None under terms on fields that sessions lack.

    One query, and by tool another one, for the tools that are `shown` only: most sessions call several.
    """
    if query.is_empty or not all(SESSIONS.has(term.field) for term in query.terms):
        return None
    rows = Session.objects.filter(replace(query, spec=SESSIONS).condition(), project_id=project_id)
    names = {"model": ("backend", "model"), "backend": ("backend",)}.get(by, ())
    found = grouped_sums(
        rows,
        {"total": (), "step": (Trunc("last_event_at", step, tzinfo=query.zone),)}
        | ({"by": tuple(F(name) for name in names)} if names else {}),
        {
            "all": Value(1),
            "blocked": one_if(Q(blocked_count__gt=0)),
            "warned": one_if(Q(warned_count__gt=0)),
        },
    )
    groups: dict[tuple[str, ...], Sessions]
    if by == "tool":
        called = SessionTool.objects.filter(
            project_id=project_id, session__in=rows, tool__in=[row.key for row in shown]
        )
        counted = (
            called.order_by()
            .values_list("tool")
            .annotate(
                Count("session_id"),
                blocked=Count("session_id", filter=Q(session__blocked_count__gt=0)),
                warned=Count("session_id", filter=Q(session__warned_count__gt=0)),
            )
        )
        groups = {(tool,): Sessions(*counts) for tool, *counts in counted}
    else:
        groups = {group.values: _sessions(group.sums) for group in found.get("by", ())}
    steps = {
        timezone.make_aware(group.values[0], query.zone): _sessions(group.sums) for group in found["step"]
    }
    return SessionsBehind(_sessions(found["total"][0].sums), steps, groups)


def _sessions(sums: Mapping[str, int | None]) -> Sessions:
    return Sessions(sums["all"] or 0, sums["blocked"] or 0, sums["warned"] or 0)
