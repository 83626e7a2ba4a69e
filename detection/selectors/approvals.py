"""Reads approvals, remembered decisions, consultations of the judge and limit notices."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from detection import clock
from detection.engine.detectors import RUN_LIMITS
from detection.models import (
    Approval,
    ApprovalState,
    Event,
    Incident,
    JudgeCall,
    LimitNotice,
    RememberedDecision,
    Session,
    SessionState,
)
from detection.models.approvals import Decider
from detection.selectors.approval_group import in_group, with_group
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import APPROVALS
from detection.selectors.pages import Page, cut

NEAR_LIMIT_SHARE = 0.8
RECENT = timedelta(minutes=10)
TOGETHER = timedelta(minutes=1)
"""Calls of a group that were closed alike within this time are one in a message: an answer for all, or a deadline."""
MAX_OPEN = 200
MAX_EXPIRED = 3


ALL_APPROVALS = list_query(APPROVALS)
"""Every approval, the newest first."""
_SHOWN = (
    *(field.attname for field in Approval._meta.concrete_fields),
    "session__external_id",
    "incident__public_id",
    "incident__loop__public_id",
)
"""The columns that are read: of session, incident and loop, the names alone."""


def with_names(rows: QuerySet[Approval]) -> QuerySet[Approval]:
    """Return approvals with the names of their session, incident and loop."""
    return rows.select_related("session", "incident__loop").only(*_SHOWN)


def list_approvals(
    project_id: int, query: ListQuery = ALL_APPROVALS, cursor: str = "", limit: int = 50
) -> Page[Approval]:
    """List approvals; `query` is of the list `APPROVALS`. `BadCursor` for a cursor of another list."""
    rows = Approval.objects.filter(query.condition(), project_id=project_id)
    found = [*with_names(query.order.page(rows, cursor))[: limit + 1]]
    return cut(found, limit, query.order.cursor)


def has_any(project_id: int) -> bool:
    """Return whether a call of the project was ever held, as far as approvals are kept."""
    return Approval.objects.filter(project_id=project_id).exists()


def waiting(*project_ids: int, decider: str = "", limit: int = MAX_OPEN) -> list[Approval]:
    """Return the open approvals of projects, most urgent first, without overdue ones, which are about to be closed.

    Parameters
    ----------
    decider
        One of `Decider`, or empty for both.
    """
    rows = Approval.objects.filter(
        project_id__in=project_ids, state=ApprovalState.OPEN, deadline__gt=clock.now()
    )
    if decider:
        rows = rows.filter(decider=decider)
    return [*with_names(rows).order_by("deadline", "id")[:limit]]


def expired_recently(project_id: int) -> list[Approval]:
    """Return the approvals of the last day that expired within `RECENT`, the newest first, at most `MAX_EXPIRED`."""
    now = clock.now()
    rows = Approval.objects.filter(
        project_id=project_id,
        state=ApprovalState.EXPIRED,
        requested_at__gt=now - timedelta(days=1),
        decided_at__gt=now - RECENT,
    )
    return [*with_names(rows).order_by("-requested_at", "-id")[:MAX_EXPIRED]]


def closed_of(project_ids: Collection[int], public_ids: Iterable[str]) -> list[Approval]:
    """Return the approvals of projects among these ids that are closed. One query; none if there are no ids."""
    rows = Approval.objects.filter(project_id__in=project_ids, public_id__in=[*public_ids])
    return [*rows.exclude(state=ApprovalState.OPEN).select_related("session")]


def last_closed_of_group(project_ids: Collection[int], group: str) -> tuple[Approval | None, int]:
    """Return the approval of a group that was closed last, if any, and how many were closed with it; two queries."""
    rows = Approval.objects.filter(in_group(group), project_id__in=project_ids)
    last = (
        rows.exclude(state=ApprovalState.OPEN)
        .select_related("session")
        .order_by("-decided_at", "-pk")
        .first()
    )
    if last is None or last.decided_at is None:
        return last, 0
    alike = {name: getattr(last, name) for name in ("state", "choice", "decision", "reason", "decided_by")}
    return last, rows.filter(**alike, decided_at__gt=last.decided_at - TOGETHER).count() - 1


def arguments_of(approvals: Iterable[Approval]) -> dict[int, str]:
    """Return the held calls' argument texts by approval; one query."""
    found = [*approvals]
    places = {(approval.session_id, approval.seq): approval.pk for approval in found}
    rows = Event.objects.filter(
        project_id__in={approval.project_id for approval in found},
        session_id__in={place[0] for place in places},
        seq__in={place[1] for place in places},
    ).values_list("session_id", "seq", "arguments")
    return {places[session, seq]: text or "" for session, seq, text in rows if (session, seq) in places}


def groups_of(approvals: Iterable[Approval]) -> dict[int, str]:
    """Return the groups of approvals by number; one query, none without approvals."""
    found = [*approvals]
    if not found:
        return {}
    rows = Approval.objects.filter(
        project_id__in={one.project_id for one in found},
        pk__in=[one.pk for one in found],
        decider=Decider.PERSON,
    )
    return dict(with_group(rows).values_list("pk", "group"))


def count_waiting(*project_ids: int) -> int:
    """Return the number of approvals of projects that wait for a person."""
    rows = Approval.objects.filter(project_id__in=project_ids, state=ApprovalState.OPEN)
    return rows.filter(deadline__gt=clock.now(), decider=Decider.PERSON).count()


def remembered(project_id: int) -> list[RememberedDecision]:
    """Return all remembered decisions that have not expired: each can be forgotten only where it is listed."""
    return [*RememberedDecision.objects.filter(project_id=project_id, expires_at__gt=clock.now())]


def near_limit(project_id: int, limit: int = 20) -> list[Session]:
    """Return running sessions that have nearly reached a limit, with their limit notices."""
    rows = Session.objects.filter(
        project_id=project_id,
        state__in=(SessionState.RUNNING, SessionState.LOOPING),
        last_event_at__gt=clock.now() - RECENT,
    ).filter(
        Exists(LimitNotice.objects.filter(project=OuterRef("project"), session=OuterRef("pk")))
        | Q(
            meter_kind__in=RUN_LIMITS, meter_limit__gt=0, meter_count__gte=F("meter_limit") * NEAR_LIMIT_SHARE
        )
    )
    return [*rows.order_by("-last_event_at").prefetch_related("limit_notices")[:limit]]


def of_incident(incident: Incident) -> tuple[list[Approval], list[JudgeCall]]:
    """Return the approvals and the judge's calls of an incident, oldest first."""
    approvals = Approval.objects.filter(incident=incident).order_by("requested_at", "id")[:MAX_OPEN]
    calls = (
        JudgeCall.objects.select_related("approval").filter(incident=incident).order_by("at", "id")[:MAX_OPEN]
    )
    return [*approvals], [*calls]


def latest_of(project_id: int, incident_ids: Iterable[int]) -> dict[int, Approval]:
    """Return the newest approval of each incident that has one; one query, none without ids."""
    wanted = [*incident_ids]
    if not wanted:
        return {}
    rows = Approval.objects.filter(project_id=project_id, incident_id__in=wanted).order_by(
        "incident_id", "-id"
    )
    return {row.incident_id: row for row in rows.distinct("incident_id") if row.incident_id}


def closed_among(waiting: Collection[tuple[int, str]], now: datetime) -> set[str]:
    """Return the approvals among these that are closed, overdue or gone, given with their projects; one query."""
    projects, wanted = {project for project, _ in waiting}, {public_id for _, public_id in waiting}
    rows = Approval.objects.filter(project_id__in=projects, public_id__in=wanted)
    still_open = rows.filter(state=ApprovalState.OPEN, deadline__gt=now)
    return wanted - {*still_open.values_list("public_id", flat=True)}
