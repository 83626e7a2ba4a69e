"""Reads incidents, for the API and the screens alike. Changes belong to the services."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import (
    BooleanField,
    Count,
    ExpressionWrapper,
    Max,
    Q,
    QuerySet,
)

from detection.engine.detectors import DETECTORS
from detection.models import Incident, IncidentActivity
from detection.models.incidents import EXCEPTED, EXCEPTION_ACTIONS, IncidentLabel, IncidentStatus
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.incident_rows import STATUSES, IncidentRow
from detection.selectors.lists import INCIDENTS
from detection.selectors.pages import Page, cut
from detection.selectors.row_fields import columns_of

MAX_READ_PER_NEIGHBOUR = 10
"""Incidents to read for each session to list, because one session may have the loop several times."""
COUNTED_INCIDENTS = 10_000
_AT_WORK = (IncidentStatus.OPEN.value, IncidentStatus.ACKNOWLEDGED.value, IncidentStatus.SNOOZED.value)


ALL_INCIDENTS = list_query(INCIDENTS)
"""Every incident, those seen last first."""


_COLUMNS = columns_of(IncidentRow)


def list_incidents(
    project_id: int, query: ListQuery = ALL_INCIDENTS, cursor: str = "", limit: int = 50
) -> Page[IncidentRow]:
    """List a project's incidents.

    Parameters
    ----------
    query
        Of the list `INCIDENTS`.
    cursor
        `next_cursor` of the page before, or empty.
    limit
        1 to 500.

    Raises
    ------
    BadCursor
        One query, by index in the default order.
    """
    rows = Incident.objects.filter(query.condition(), project_id=project_id)
    order = query.order
    return cut(_fetch(order.page(rows, cursor), limit + 1), limit, order.cursor)


def _fetch(rows: QuerySet[Incident], limit: int) -> list[IncidentRow]:
    return [IncidentRow(*row) for row in rows.values_list(*_COLUMNS.values())[:limit]]


def newest_key(project_id: int) -> int:
    """Return the row id of the newest incident, the bound of an action on all that match; 0 without any."""
    return Incident.objects.filter(project_id=project_id).aggregate(newest=Max("pk"))["newest"] or 0


def matching_keys(project_id: int, query: ListQuery, up_to: int, limit: int) -> list[int]:
    """Return the row ids of the incidents that a query selects, newest first, except those opened later.

    Parameters
    ----------
    up_to
        `newest_key` at the time the person saw the list.
    """
    rows = Incident.objects.filter(query.condition(), project_id=project_id, pk__lte=up_to)
    return [*rows.order_by("-pk").values_list("pk", flat=True)[:limit]]


def get_incident(project_id: int, public_id: str) -> Incident | None:
    """Return an incident of this project, with its session, its loop and the person who acknowledged it."""
    if "\x00" in public_id:
        return None
    return (
        Incident.objects.select_related("session", "acknowledged_by", "loop")
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """How many incidents have each status, and how many are labelled "not a loop".

    Attributes
    ----------
    is_capped
        The project has more than `COUNTED_INCIDENTS` incidents: all counts but open, acknowledged and snoozed are of
        the newest of them only.
    """

    all: int
    open: int
    acknowledged: int
    snoozed: int
    ended: int
    resolved: int
    not_a_loop: int
    is_capped: bool


def counts(project_id: int, query: ListQuery = ALL_INCIDENTS) -> StatusCounts:
    """Count incidents by status under the query of the list, except its terms of the field `is`.

    One query over at most `COUNTED_INCIDENTS` rows of an index; one more in projects with more incidents.
    """
    wanted = Q(pk__isnull=False) & query.condition(without=("is",))
    newest = Incident.objects.filter(project_id=project_id).order_by("-last_seen_at", "-id")
    rows = newest.annotate(fits=ExpressionWrapper(wanted, BooleanField())).values(
        "pk", "status", "label", "fits"
    )
    found = rows[:COUNTED_INCIDENTS].aggregate(
        seen=Count("pk"),
        all=Count("pk", filter=Q(fits=True)),
        not_a_loop=Count("pk", filter=Q(fits=True, label=IncidentLabel.FALSE_ALARM)),
        **{status: Count("pk", filter=Q(fits=True, status=status)) for status in STATUSES},
    )
    is_capped = found.pop("seen") >= COUNTED_INCIDENTS
    if is_capped:
        at_work = newest.filter(wanted, status__in=_AT_WORK).order_by()
        found |= dict.fromkeys(_AT_WORK, 0) | dict(at_work.values_list("status").annotate(Count("pk")))
    return StatusCounts(is_capped=is_capped, **found)


def last_loop(incident: Incident) -> Incident | None:
    """Return the loop in which a session ended, if it was found after the last call of this one."""
    if incident.session_id is None or incident.ended_at is None or incident.recovered is not False:
        return None
    ended_with_it = Incident.objects.filter(
        project_id=incident.project_id,
        session_id=incident.session_id,
        ended_at=incident.ended_at,
        recovered=False,
        last_call_number__gt=incident.last_call_number,
        kind__in=[one.kind for one in DETECTORS if one.is_of_calls],
    )
    return ended_with_it.order_by("-last_call_number", "-pk").first()


def neighbours(incident: Incident, limit: int = 10) -> list[IncidentRow]:
    """List the same loop in other sessions of the project, the latest incident of each, those seen last first."""
    rows = Incident.objects.filter(project_id=incident.project_id, calls_digest=incident.calls_digest)
    others = rows.exclude(session_name=incident.session_name).order_by("-last_seen_at", "-id")
    latest: dict[str, IncidentRow] = {}
    for row in _fetch(others, limit * MAX_READ_PER_NEIGHBOUR):
        latest.setdefault(row.session_name, row)
    return list(latest.values())[:limit]


def exceptions(project_id: int) -> QuerySet[IncidentActivity]:
    """Return the exceptions that were saved from incidents and not undone, newest first.

    Reads an index of these entries alone.
    """
    of_exceptions = IncidentActivity.objects.filter(project_id=project_id, action__in=EXCEPTION_ACTIONS)
    latest = of_exceptions.order_by("incident_id", "-id").distinct("incident_id").values("id")
    return of_exceptions.filter(action=EXCEPTED, id__in=latest).order_by("-id")
