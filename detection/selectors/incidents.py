"""Reads incidents, for the API and the screens alike. Changes belong to the services."""

from __future__ import annotations

from django.db.models import (
    QuerySet,
)

from detection.engine.detectors import DETECTORS
from detection.models import Incident, IncidentActivity
from detection.models.incidents import EXCEPTED, EXCEPTION_ACTIONS
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.lists import INCIDENTS
from detection.selectors.pages import Page, cut
from detection.selectors.row_fields import columns_of

MAX_READ_PER_NEIGHBOUR = 10
"""Incidents to read for each session to list, because one session may have the loop several times."""


ALL_INCIDENTS = list_query(INCIDENTS)
"""Every incident, those seen last first."""


_COLUMNS = columns_of(IncidentRow)


def list_incidents(
    project_id: int, query: ListQuery = ALL_INCIDENTS, cursor: str = "", limit: int = 50
) -> Page[IncidentRow]:
    """List a project's incidents; `query` is of the list `INCIDENTS`, and `limit` 1 to 500.

    `BadCursor` for a cursor of another list. One query, by index in the default order.
    """
    rows = Incident.objects.filter(query.condition(), project_id=project_id)
    order = query.order
    return cut(_fetch(order.page(rows, cursor), limit + 1), limit, order.cursor)


def _fetch(rows: QuerySet[Incident], limit: int) -> list[IncidentRow]:
    return [IncidentRow(*row) for row in rows.values_list(*_COLUMNS.values())[:limit]]


def get_incident(project_id: int, public_id: str) -> Incident | None:
    """Return an incident of this project, with its session and its loop."""
    if "\x00" in public_id:
        return None
    return (
        Incident.objects.select_related("session", "loop")
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )


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
    return ended_with_it.select_related("loop").order_by("-last_call_number", "-pk").first()


def neighbours(incident: Incident, limit: int = 10) -> list[IncidentRow]:
    """List the same loop in other sessions of the project, the latest incident of each, those seen last first."""
    rows = Incident.objects.filter(project_id=incident.project_id, calls_digest=incident.calls_digest)
    others = rows.exclude(session_name=incident.session_name).order_by("-last_seen_at", "-id")
    latest: dict[str, IncidentRow] = {}
    for row in _fetch(others, limit * MAX_READ_PER_NEIGHBOUR):
        latest.setdefault(row.session_name, row)
    return list(latest.values())[:limit]


def exceptions_of_loop(project_id: int, loop_id: int) -> QuerySet[IncidentActivity]:
    """Return the exceptions that were saved when a loop was called fine, newest first."""
    return exceptions(project_id).filter(incident__loop_id=loop_id)


def exceptions(project_id: int) -> QuerySet[IncidentActivity]:
    """Return the exceptions that were saved from incidents and not undone, newest first.

    Reads an index of these entries alone.
    """
    of_exceptions = IncidentActivity.objects.filter(project_id=project_id, action__in=EXCEPTION_ACTIONS)
    latest = of_exceptions.order_by("incident_id", "-id").distinct("incident_id").values("id")
    return of_exceptions.filter(action=EXCEPTED, id__in=latest).order_by("-id")
