"""Routes of loops and actions on them."""

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
from detection.api.schemas.incidents import ActivitySchema, CommentRequestSchema, NoteRequestSchema
from detection.api.schemas.loops import (
    AssignRequestSchema,
    BulkLoopActionRequestSchema,
    BulkLoopActionResultSchema,
    LabelLoopRequestSchema,
    LoopDetailSchema,
    LoopExportQuerySchema,
    LoopFiltersSchema,
    LoopQuerySchema,
    LoopSchema,
    MuteRequestSchema,
)
from detection.api.typed_bodies import described, optional_body
from detection.filtering.language import term
from detection.models import Loop
from detection.selectors import incidents, loops
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import INCIDENTS, LOOPS
from detection.selectors.row_fields import document_of
from detection.services.incidents import loop_triage as services
from detection.web.documents import incident_document, loop_document

router = Router(tags=["loops"])
MAX_INCIDENTS, MAX_ACTIVITY = 50, 200
_PARAMETERS = {"state": "is", "assignee": "owner", "kind": "detector"} | {
    name: name for name in ("tool", "agent", "backend", "model", "session")
}
"""Typed parameters and the fields of the filter language that they select values of."""


def _query(request: ApiRequest, query: LoopFiltersSchema) -> ListQuery:
    return query_of(request, LOOPS, query, _PARAMETERS)


def _changed(request: ApiRequest, loop: Loop) -> HttpResponse:
    return json_response(loop_document(loops.row_of(loop), request.principal.project_slug))


@router.get(
    "/loops",
    auth=READ,
    response={200: PageSchema[LoopSchema]},
    summary="List loops",
)
def list_loops(request: ApiRequest, query: Query[LoopQuerySchema]) -> HttpResponse:
    """List loops, most recently detected first."""
    document = partial(loop_document, project=request.principal.project_slug)
    return page_response(request, query, _query(request, query), loops.list_loops, document)


@router.get(
    "/loops/export",
    auth=READ,
    summary="Export loops",
    openapi_extra=LIST_AS_FILE,
)
def export_loops(request: ApiRequest, query: Query[LoopExportQuerySchema]) -> HttpResponseBase:
    """Export up to 100,000 loops as JSON lines or CSV."""
    return export_response(request, query, _query(request, query))


@router.post(
    "/loops/bulk",
    auth=ADMIN_WITH_BODY,
    response={200: BulkLoopActionResultSchema},
    summary="Update several loops",
)
def update_loops(request: ApiRequest, body: Body[BulkLoopActionRequestSchema]) -> HttpResponse:
    """Apply one action to up to 500 loops. Each has its own outcome."""
    more: dict[str, object] = {}
    if body.action == "assign":
        more = {"assignee": body.assignee}
    elif body.action == "mute":
        more = {"until": body.until, "until_worse": body.until_worse, "reason": body.reason}
    elif body.action == "label":
        more = {"value": body.label, "note": body.note}
    elif body.action in ("acknowledge", "resolve"):
        more = {"note": body.note}
    return bulk_response(request, services.bulk, body.ids, body.action, **more)


@router.get(
    "/loops/{loop_id}",
    auth=READ,
    response={200: LoopDetailSchema},
    summary="Get a loop",
)
def get_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Return a loop with what its incidents share, its newest incidents and its activity."""
    principal = request.principal
    loop = existing(loops.get_loop(principal.project_id, existing_name(loop_id)))
    document = loop_document(loops.row_of(loop), principal.project_slug)
    facts, names = loops.shared_facts(loop), {"session_name": "session"}
    document["shared"] = {names.get(name, name): document_of(fact) for name, fact in facts.items()}
    of_it = list_query(INCIDENTS, terms=(term("loop", loop.public_id),))
    page = incidents.list_incidents(principal.project_id, of_it, "", MAX_INCIDENTS)
    document["newest_incidents"] = [incident_document(row, principal.project_slug) for row in page.items]
    newest = loop.activity.order_by("-at", "-id")[:MAX_ACTIVITY]
    document["activity"] = [document_of(entry, ActivitySchema) for entry in reversed(newest)]
    return json_response(document)


@router.post(
    "/loops/{loop_id}/assign",
    auth=ADMIN_WITH_BODY,
    response={200: LoopSchema},
    summary="Assign a loop",
)
def assign_loop(request: ApiRequest, loop_id: str, body: Body[AssignRequestSchema]) -> HttpResponse:
    """Set the person responsible for the loop."""
    return _changed(request, services.assign(*target(request, loop_id), body.assignee))


@router.post(
    "/loops/{loop_id}/comment",
    auth=ADMIN_WITH_BODY,
    response={200: LoopSchema},
    summary="Comment on a loop",
)
def comment_loop(request: ApiRequest, loop_id: str, body: Body[CommentRequestSchema]) -> HttpResponse:
    """Add a comment to the activity."""
    return _changed(request, services.comment(*target(request, loop_id), body.note))


@router.post(
    "/loops/{loop_id}/mute",
    auth=ADMIN_WITH_BODY,
    response={200: LoopSchema},
    summary="Mute a loop",
)
def mute_loop(request: ApiRequest, loop_id: str, body: Body[MuteRequestSchema]) -> HttpResponse:
    """Send no notifications about the loop until a given time, or until it gets worse."""
    until = body.until
    if until is None and body.hours is not None:
        until = timezone.now() + timedelta(hours=body.hours)
    return _changed(
        request,
        services.mute(
            *target(request, loop_id), until=until, until_worse=body.until_worse, reason=body.reason
        ),
    )


@router.post(
    "/loops/{loop_id}/unmute",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Unmute a loop",
)
def unmute_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """End the mute. Alerts for incidents that are still open and were never sent are sent once."""
    return _changed(request, services.unmute(*target(request, loop_id)))


@router.post(
    "/loops/{loop_id}/acknowledge",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Acknowledge a loop",
    openapi_extra=described(NoteRequestSchema),
)
def acknowledge_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Acknowledge all its open and snoozed incidents. If there are very many, a worker continues."""
    note = optional_body(request, NoteRequestSchema).note
    return _changed(request, services.acknowledge(*target(request, loop_id), note))


@router.post(
    "/loops/{loop_id}/resolve",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Resolve a loop",
    openapi_extra=described(NoteRequestSchema),
)
def resolve_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Resolve the loop and its incidents. If its loop is detected again, the loop reopens."""
    note = optional_body(request, NoteRequestSchema).note
    return _changed(request, services.resolve(*target(request, loop_id), note))


@router.post(
    "/loops/{loop_id}/label",
    auth=ADMIN_WITH_BODY,
    response={200: LoopSchema},
    summary="Label a loop",
)
def label_loop(request: ApiRequest, loop_id: str, body: Body[LabelLoopRequestSchema]) -> HttpResponse:
    """Record whether the loop and all its incidents were loops."""
    return _changed(request, services.label(*target(request, loop_id), body.label, body.note))


@router.post(
    "/loops/{loop_id}/undo",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Undo the last action",
)
def undo_loop_action(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Undo the last action of this key on the loop and its incidents, within ten minutes."""
    return _changed(request, services.undo(*target(request, loop_id)))
