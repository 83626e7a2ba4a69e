"""Routes of exceptions that are created from an incident."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Body, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import existing, existing_name, target
from detection.api.requests import ApiRequest
from detection.api.responses import json_response, list_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.incidents import ActivitySchema, ExceptionOptionSchema, ExceptionRequestSchema
from detection.selectors import incidents
from detection.selectors.row_fields import document_of
from detection.services.exceptions import exceptions

router = Router(tags=["incidents"])


@router.get(
    "/incidents/{incident_id}/exceptions",
    auth=READ,
    response={200: PageSchema[ExceptionOptionSchema]},
    summary="List exceptions that fit an incident",
)
def list_exceptions(request: ApiRequest, incident_id: str) -> HttpResponse:
    """List changes under which the incident would not have happened, narrowest scope first.

    Each can be tried as a what-if.
    """
    incident = existing(incidents.get_incident(request.principal.project_id, existing_name(incident_id)))
    found = exceptions.narrowest_first(incident, exceptions.options(incident))
    suggested = exceptions.best(found, incident.label_reason)
    return list_response(
        document_of(
            one,
            ExceptionOptionSchema,
            words=f"{one.where}: {one.words}",
            is_suggested=one.id == suggested,
            change=one.change.as_dict(),
        )
        for one in found
    )


@router.post(
    "/incidents/{incident_id}/exceptions",
    auth=ADMIN_WITH_BODY,
    response={200: ActivitySchema},
    summary="Create an exception from an incident",
)
def create_exception(
    request: ApiRequest, incident_id: str, body: Body[ExceptionRequestSchema]
) -> HttpResponse:
    """Save one of the exceptions of the incident; it takes effect on the next call, until it expires."""
    project_id, public_id, actor = target(request, incident_id)
    entry = exceptions.create_exception(
        project_id,
        public_id,
        actor,
        body.option,
        arguments=body.arguments,
        note=body.note,
        expires_at=body.expires_at,
    )
    return json_response(document_of(entry, ActivitySchema))


@router.post(
    "/incidents/{incident_id}/exceptions/undo",
    auth=ADMIN,
    response={200: ActivitySchema},
    summary="Undo an exception",
)
def undo_exception(request: ApiRequest, incident_id: str) -> HttpResponse:
    """Restore what the latest exception of the incident has set; settings that were changed since stay."""
    return json_response(
        document_of(exceptions.undo_exception(*target(request, incident_id)), ActivitySchema)
    )
