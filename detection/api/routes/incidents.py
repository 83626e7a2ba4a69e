"""Routes of incidents. They are read only: people act on loops."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from ninja import Query, Router

from detection.api.auth import READ
from detection.api.pages import export_response, page_response, query_of
from detection.api.query_parameters import existing, existing_name
from detection.api.requests import ApiRequest
from detection.api.responses import LIST_AS_FILE, json_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.incidents import (
    ActivitySchema,
    IncidentDetailSchema,
    IncidentExportQuerySchema,
    IncidentFiltersSchema,
    IncidentQuerySchema,
    IncidentSchema,
)
from detection.models import Incident
from detection.selectors import incidents, strip_images
from detection.selectors.filters import ListQuery
from detection.selectors.lists import INCIDENTS
from detection.selectors.row_fields import document_of
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
