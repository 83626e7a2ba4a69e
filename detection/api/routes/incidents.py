"""Incidents: find, look, and say what they were."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from ninja import Body, Query, Router

from detection import exports
from detection.api import schemas
from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, actor, principal_of, project_of
from detection.api.query_parameters import existing, existing_name, refuse_unknown, target
from detection.api.responses import LIST_AS_FILE, activity_document, answer, answer_list, incident_document
from detection.api.typed_bodies import described, optional_body
from detection.models import Incident
from detection.selectors import incidents, strip_images
from detection.selectors.incidents import IncidentFilters
from detection.services.incidents import triage as services

router = Router(tags=["incidents"])
CSV_COLUMNS = tuple(name for name in schemas.IncidentOut.model_fields if name != "links")


def _filters(query: schemas.IncidentQuery) -> IncidentFilters:
    return IncidentFilters(**query.dict(include=set(IncidentFilters.__dataclass_fields__)))


def _incident(request: HttpRequest, public_id: str) -> Incident:
    return existing(incidents.get_incident(project_of(request), existing_name(public_id)), "incident")


def _changed(request: HttpRequest, incident: Incident) -> HttpResponse:
    return answer(incident_document(incident, principal_of(request).project_slug))


@router.get(
    "/incidents",
    auth=READ,
    response={200: schemas.Listed[schemas.IncidentOut]},
    operation_id="listIncidents",
    summary="List incidents",
)
def list_incidents(request: HttpRequest, query: Query[schemas.IncidentQuery]) -> HttpResponse:
    """List incidents, those seen last first."""
    refuse_unknown(request, schemas.IncidentQuery)
    principal = principal_of(request)
    page = incidents.list_incidents(principal.project_id, _filters(query), query.cursor, query.limit)
    rows = (incident_document(row, principal.project_slug) for row in page.items)
    return answer_list(rows, page.next_cursor)


class _ExportQuery(schemas.ExportQuery):
    format: Literal["jsonl", "csv"] = "jsonl"


@router.get(
    "/incidents/export",
    auth=READ,
    operation_id="exportIncidents",
    summary="Export incidents",
    openapi_extra=LIST_AS_FILE,
)
def export_incidents(request: HttpRequest, query: Query[_ExportQuery]) -> HttpResponseBase:
    """Export up to 10,000 incidents as JSON lines or CSV; `cursor` is not used."""
    refuse_unknown(request, _ExportQuery)
    principal = principal_of(request)
    rows = incidents.export_incidents(principal.project_id, _filters(query), query.limit)
    documents = (incident_document(row, principal.project_slug) for row in rows)
    name = f"loopguard-incidents-{principal.project_slug}"
    if query.format == "csv":
        return exports.as_csv(documents, CSV_COLUMNS, name)
    return exports.as_json_lines(documents, name)


@router.post(
    "/incidents/bulk",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.BulkOut},
    operation_id="changeIncidents",
    summary="Do one thing to several incidents",
)
def change_incidents(request: HttpRequest, body: Body[schemas.BulkIn]) -> HttpResponse:
    """Do one thing to up to 500 incidents; each has an outcome of its own."""
    more: dict[str, Any] = {}
    if body.action == "snooze":
        more = {"until": body.until, "until_worse": body.until_worse}
    elif body.action == "label":
        more = {"value": body.label}
    ids = [public_id for public_id in body.ids if public_id.isprintable()]
    outcome = dict.fromkeys(body.ids, "not_found")
    outcome |= services.bulk(project_of(request), ids, body.action, actor(request), **more)
    return answer({"outcome": outcome})


@router.get(
    "/incidents/{incident_id}",
    auth=READ,
    response={200: schemas.IncidentDetail},
    operation_id="getIncident",
    summary="Look at an incident",
)
def get_incident(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Return an incident with its evidence, the settings of that time, its activity and its neighbours."""
    incident, slug = _incident(request, incident_id), principal_of(request).project_slug
    document = incident_document(incident, slug)
    document["evidence"] = incident.evidence
    document["policy"] = incident.policy
    document["activity"] = [activity_document(entry) for entry in incident.activity.all()]
    document["neighbours"] = [incident_document(row, slug) for row in incidents.neighbours(incident)]
    return answer(document)


@router.get(
    "/incidents/{incident_id}/strip.svg",
    auth=READ,
    operation_id="getIncidentStrip",
    summary="See an incident's calls as a picture",
    openapi_extra={
        "responses": {
            200: {
                "description": "The loop strip: one cell per call, colour means repetition, a bracket below the loop.",
                "content": {"image/svg+xml": {"schema": {"type": "string"}}},
            }
        }
    },
)
def get_strip(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Draw the calls around the loop as a static SVG without text of the agent's, scripts or links."""
    picture = strip_images.of_incident(_incident(request, incident_id))
    response = HttpResponse(picture, content_type="image/svg+xml")
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


@router.post(
    "/incidents/{incident_id}/acknowledge",
    auth=ADMIN,
    response={200: schemas.IncidentOut},
    operation_id="acknowledgeIncident",
    summary="Acknowledge",
)
def acknowledge(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Say that somebody looks after it."""
    return _changed(
        request,
        services.acknowledge(*target(request, incident_id)),
    )


@router.post(
    "/incidents/{incident_id}/resolve",
    auth=ADMIN,
    response={200: schemas.IncidentOut},
    operation_id="resolveIncident",
    summary="Resolve",
    openapi_extra=described(schemas.NoteIn),
)
def resolve(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Close it; the same loop found again is a new incident."""
    note = optional_body(request, schemas.NoteIn).note
    return _changed(
        request,
        services.resolve(*target(request, incident_id), note),
    )


@router.post(
    "/incidents/{incident_id}/reopen",
    auth=ADMIN,
    response={200: schemas.IncidentOut},
    operation_id="reopenIncident",
    summary="Reopen",
)
def reopen(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Take a resolution, snooze or acknowledgement back."""
    return _changed(request, services.reopen(*target(request, incident_id)))


@router.post(
    "/incidents/{incident_id}/undo",
    auth=ADMIN,
    response={200: schemas.IncidentOut},
    operation_id="undoIncidentChange",
    summary="Undo",
)
def undo(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Take back what this key did last, within ten minutes."""
    return _changed(request, services.undo(*target(request, incident_id)))


@router.post(
    "/incidents/{incident_id}/snooze",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.IncidentOut},
    operation_id="snoozeIncident",
    summary="Snooze",
)
def snooze(request: HttpRequest, incident_id: str, body: Body[schemas.SnoozeIn]) -> HttpResponse:
    """Put it aside until a time, or until it gets worse."""
    until = body.until
    if until is None and body.hours is not None:
        until = timezone.now() + timedelta(hours=body.hours)
    return _changed(
        request,
        services.snooze(
            *target(request, incident_id),
            until=until,
            until_worse=body.until_worse,
        ),
    )


@router.post(
    "/incidents/{incident_id}/label",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.IncidentOut},
    operation_id="labelIncident",
    summary="Label",
)
def label(request: HttpRequest, incident_id: str, body: Body[schemas.LabelIn]) -> HttpResponse:
    """Say whether it was a loop."""
    return _changed(
        request,
        services.label(
            *target(request, incident_id),
            body.label,
            body.note,
        ),
    )


@router.post(
    "/incidents/{incident_id}/comment",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.IncidentOut},
    operation_id="commentIncident",
    summary="Comment",
)
def comment(request: HttpRequest, incident_id: str, body: Body[schemas.CommentIn]) -> HttpResponse:
    """Add a remark to the activity."""
    return _changed(
        request,
        services.comment(*target(request, incident_id), body.note),
    )
