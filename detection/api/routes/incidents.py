"""Routes of incidents and actions on them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.pages import bulk_response, export_response, page_response, query_of
from detection.api.query_parameters import existing, existing_name, target
from detection.api.requests import ApiRequest
from detection.api.responses import LIST_AS_FILE, json_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.incidents import (
    ActivitySchema,
    BulkActionRequestSchema,
    BulkActionResultSchema,
    CommentRequestSchema,
    IncidentDetailSchema,
    IncidentExportQuerySchema,
    IncidentFiltersSchema,
    IncidentQuerySchema,
    IncidentSchema,
    LabelRequestSchema,
    NoteRequestSchema,
    SnoozeRequestSchema,
)
from detection.api.typed_bodies import described, optional_body
from detection.models import Incident
from detection.selectors import incidents, strip_images
from detection.selectors.filters import ListQuery
from detection.selectors.lists import INCIDENTS
from detection.selectors.row_fields import document_of
from detection.services.incidents import triage as services
from detection.web.documents import incident_document

router = Router(tags=["incidents"])


_PARAMETERS = {"status": "is", "loop_id": "loop", "kind": "detector"} | {
    name: name for name in ("tool", "agent", "backend", "model", "label", "session")
}
"""Typed parameters and the fields of the filter language that they select values of."""


def _query(request: ApiRequest, query: IncidentFiltersSchema) -> ListQuery:
    return query_of(request, INCIDENTS, query, _PARAMETERS)


def _incident(request: ApiRequest, public_id: str) -> Incident:
    return existing(incidents.get_incident(request.principal.project_id, existing_name(public_id)))


def _changed(request: ApiRequest, incident: Incident) -> HttpResponse:
    return json_response(incident_document(incident, request.principal.project_slug))


@router.get(
    "/incidents",
    auth=READ,
    response={200: PageSchema[IncidentSchema]},
    summary="List incidents",
)
def list_incidents(request: ApiRequest, query: Query[IncidentQuerySchema]) -> HttpResponse:
    """List incidents, most recently detected first."""
    document = partial(incident_document, project=request.principal.project_slug)
    return page_response(request, query, _query(request, query), incidents.list_incidents, document)


@router.get(
    "/incidents/export",
    auth=READ,
    summary="Export incidents",
    openapi_extra=LIST_AS_FILE,
)
def export_incidents(request: ApiRequest, query: Query[IncidentExportQuerySchema]) -> HttpResponseBase:
    """Export up to 100,000 incidents as JSON lines or CSV."""
    return export_response(request, query, _query(request, query))


@router.post(
    "/incidents/bulk",
    auth=ADMIN_WITH_BODY,
    response={200: BulkActionResultSchema},
    summary="Update several incidents",
)
def update_incidents(request: ApiRequest, body: Body[BulkActionRequestSchema]) -> HttpResponse:
    """Apply one action to up to 500 incidents. Each has its own outcome."""
    more: dict[str, object] = {}
    if body.action == "snooze":
        more = {"until": body.until, "until_worse": body.until_worse}
    elif body.action == "label":
        more = {"value": body.label, "reason": body.reason}
    return bulk_response(request, services.bulk, body.ids, body.action, **more)


@router.get(
    "/incidents/{incident_id}",
    auth=READ,
    response={200: IncidentDetailSchema},
    summary="Get an incident",
)
def get_incident(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Return an incident with evidence, settings when it was opened, findings and activity."""
    incident, slug = _incident(request, incident_id), request.principal.project_slug
    document = incident_document(incident, slug)
    document["evidence"] = incident.evidence
    document["pattern"] = incident.evidence.get("pattern", [])
    document["laps"] = incident.evidence.get("laps", 0)
    document["detection_number"] = incident.evidence.get("detection_number", 0)
    document["policy"] = incident.policy
    document["activity"] = [document_of(entry, ActivitySchema) for entry in incident.activity.all()]
    document["findings"] = incident.findings_by_weight
    document["reactions"] = incident.evidence.get("reactions", {})
    document["neighbours"] = [incident_document(row, slug) for row in incidents.neighbours(incident)]
    return json_response(document)


@router.get(
    "/incidents/{incident_id}/strip.svg",
    auth=READ,
    summary="Get an incident's strip",
    openapi_extra={
        "responses": {
            200: {
                "description": "The loop strip: one cell per call, colour means repetition, a bracket below the loop.",
                "content": {"image/svg+xml": {"schema": {"type": "string"}}},
            }
        }
    },
)
def get_incident_strip(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Draw the calls around the loop as a static SVG. It contains no text of the agent, no scripts and no links."""
    picture = strip_images.of_incident(_incident(request, incident_id))
    response = HttpResponse(picture, content_type="image/svg+xml")
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


@router.post(
    "/incidents/{incident_id}/acknowledge",
    auth=ADMIN,
    response={200: IncidentSchema},
    summary="Acknowledge an incident",
)
def acknowledge_incident(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Record that a person is handling the incident."""
    return _changed(
        request,
        services.acknowledge(*target(request, incident_id)),
    )


@router.post(
    "/incidents/{incident_id}/resolve",
    auth=ADMIN,
    response={200: IncidentSchema},
    summary="Resolve an incident",
    openapi_extra=described(NoteRequestSchema),
)
def resolve_incident(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Close the incident. If the loop is detected again, a new incident is opened."""
    note = optional_body(request, NoteRequestSchema).note
    return _changed(
        request,
        services.resolve(*target(request, incident_id), note),
    )


@router.post(
    "/incidents/{incident_id}/reopen",
    auth=ADMIN,
    response={200: IncidentSchema},
    summary="Reopen an incident",
)
def reopen_incident(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Open a resolved, snoozed or acknowledged incident again."""
    return _changed(request, services.reopen(*target(request, incident_id)))


@router.post(
    "/incidents/{incident_id}/undo",
    auth=ADMIN,
    response={200: IncidentSchema},
    summary="Undo the last action",
)
def undo_incident_action(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Undo the last action of this key on the incident, within ten minutes."""
    return _changed(request, services.undo(*target(request, incident_id)))


@router.post(
    "/incidents/{incident_id}/snooze",
    auth=ADMIN_WITH_BODY,
    response={200: IncidentSchema},
    summary="Snooze an incident",
)
def snooze_incident(request: ApiRequest, incident_id: str, body: Body[SnoozeRequestSchema]) -> HttpResponse:
    """Hide the incident until a given time, or until the loop reaches a stricter reaction."""
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
    response={200: IncidentSchema},
    summary="Label an incident",
)
def label_incident(request: ApiRequest, incident_id: str, body: Body[LabelRequestSchema]) -> HttpResponse:
    """Record whether the incident was a loop."""
    return _changed(
        request,
        services.label(
            *target(request, incident_id),
            body.label,
            body.note,
            body.reason,
        ),
    )


@router.post(
    "/incidents/{incident_id}/comment",
    auth=ADMIN_WITH_BODY,
    response={200: IncidentSchema},
    summary="Comment on an incident",
)
def comment_incident(request: ApiRequest, incident_id: str, body: Body[CommentRequestSchema]) -> HttpResponse:
    """Add a comment to the activity."""
    return _changed(
        request,
        services.comment(*target(request, incident_id), body.note),
    )
