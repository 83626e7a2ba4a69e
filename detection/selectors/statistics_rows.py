"""Counts the rows that numbers of the statistics link to where these count something else: consultations and calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Q
from django.db.models.functions import Trunc

from detection.models import Incident, JudgeCall, JudgeLabel, Session
from detection.selectors.filters import ListQuery
from detection.selectors.lists import SESSIONS
from detection.selectors.statistics import By


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
    consulted = JudgeCall.objects.filter(incident__in=found).order_by().values_list("outcome")
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


def sessions_of_groups(project_id: int, query: ListQuery, by: By) -> dict[tuple[str, ...], int]:
    """Count the sessions whose last event is in the range by their backend or model; one query. Empty as `sessions_behind`.

    A session counts for its latest model only. A session stores only its last tool, so there are no counts by tool.
    """
    names = {"model": ("backend", "model"), "backend": ("backend",)}.get(by)
    if names is None or not _selects_sessions(query):
        return {}
    rows = Session.objects.filter(replace(query, spec=SESSIONS).condition(), project_id=project_id).order_by()
    return {tuple(parts): count for *parts, count in rows.values_list(*names).annotate(Count("pk"))}


def _selects_sessions(query: ListQuery) -> bool:
    known = {field.name for field in SESSIONS.fields} - {"tool"}
    return not query.is_empty and all(term.field in known for term in query.terms)


def sessions_behind(project_id: int, query: ListQuery, by: By) -> dict[datetime, Sessions]:
    """Count the sessions whose last event is in each hour or day of a query of `STATISTICS`; one query.

    Empty under terms that do not select sessions: terms on fields that sessions lack, and tools, because a session
    stores only the last one.
    """
    if not _selects_sessions(query):
        return {}
    rows = Session.objects.filter(replace(query, spec=SESSIONS).condition(), project_id=project_id).order_by()
    counted = rows.values_list(Trunc("last_event_at", by, tzinfo=query.zone)).annotate(
        Count("pk"),
        blocked=Count("pk", filter=Q(blocked_count__gt=0)),
        warned=Count("pk", filter=Q(warned_count__gt=0)),
    )
    return {start: Sessions(*counts) for start, *counts in counted}
