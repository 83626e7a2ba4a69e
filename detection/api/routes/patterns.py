"""Routes of patterns and actions on them."""

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
from detection.api.schemas.patterns import (
    AssignRequestSchema,
    BulkPatternActionRequestSchema,
    BulkPatternActionResultSchema,
    LabelPatternRequestSchema,
    MuteRequestSchema,
    PatternDetailSchema,
    PatternExportQuerySchema,
    PatternFiltersSchema,
    PatternQuerySchema,
    PatternSchema,
)
from detection.api.typed_bodies import described, optional_body
from detection.filtering.language import term
from detection.models import Pattern
from detection.selectors import incidents, patterns
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import INCIDENTS, PATTERNS
from detection.selectors.row_fields import document_of
from detection.services.incidents import pattern_triage as services
from detection.web.documents import incident_document, pattern_document

router = Router(tags=["patterns"])
MAX_INCIDENTS, MAX_ACTIVITY = 50, 200
_PARAMETERS = {"state": "is", "assignee": "owner", "kind": "detector"} | {
    name: name for name in ("tool", "agent", "backend", "model", "session")
}
"""Typed parameters and the fields of the filter language that they select values of."""


def _query(request: ApiRequest, query: PatternFiltersSchema) -> ListQuery:
    return query_of(request, PATTERNS, query, _PARAMETERS)


def _changed(request: ApiRequest, pattern: Pattern) -> HttpResponse:
    return json_response(pattern_document(patterns.row_of(pattern), request.principal.project_slug))


@router.get(
    "/patterns",
    auth=READ,
    response={200: PageSchema[PatternSchema]},
    summary="List patterns",
)
def list_patterns(request: ApiRequest, query: Query[PatternQuerySchema]) -> HttpResponse:
    """List patterns, most recently detected first."""
    document = partial(pattern_document, project=request.principal.project_slug)
    return page_response(request, query, _query(request, query), patterns.list_patterns, document)


@router.get(
    "/patterns/export",
    auth=READ,
    summary="Export patterns",
    openapi_extra=LIST_AS_FILE,
)
def export_patterns(request: ApiRequest, query: Query[PatternExportQuerySchema]) -> HttpResponseBase:
    """Export up to 100,000 patterns as JSON lines or CSV."""
    return export_response(request, query, _query(request, query))


@router.post(
    "/patterns/bulk",
    auth=ADMIN_WITH_BODY,
    response={200: BulkPatternActionResultSchema},
    summary="Update several patterns",
)
def update_patterns(request: ApiRequest, body: Body[BulkPatternActionRequestSchema]) -> HttpResponse:
    """Apply one action to up to 500 patterns. Each has its own outcome."""
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
    "/patterns/{pattern_id}",
    auth=READ,
    response={200: PatternDetailSchema},
    summary="Get a pattern",
)
def get_pattern(request: ApiRequest, pattern_id: str) -> HttpResponse:
    """Return a pattern with what its incidents share, its newest incidents and its activity."""
    principal = request.principal
    pattern = existing(patterns.get_pattern(principal.project_id, existing_name(pattern_id)))
    document = pattern_document(patterns.row_of(pattern), principal.project_slug)
    facts, names = patterns.shared_facts(pattern), {"loop_id": "loop", "session_name": "session"}
    document["shared"] = {names.get(name, name): document_of(fact) for name, fact in facts.items()}
    of_it = list_query(INCIDENTS, terms=(term("pattern", pattern.public_id),))
    page = incidents.list_incidents(principal.project_id, of_it, "", MAX_INCIDENTS)
    document["newest_incidents"] = [incident_document(row, principal.project_slug) for row in page.items]
    newest = pattern.activity.order_by("-at", "-id")[:MAX_ACTIVITY]
    document["activity"] = [document_of(entry, ActivitySchema) for entry in reversed(newest)]
    return json_response(document)


@router.post(
    "/patterns/{pattern_id}/assign",
    auth=ADMIN_WITH_BODY,
    response={200: PatternSchema},
    summary="Assign a pattern",
)
def assign_pattern(request: ApiRequest, pattern_id: str, body: Body[AssignRequestSchema]) -> HttpResponse:
    """Set the person responsible for the pattern."""
    return _changed(request, services.assign(*target(request, pattern_id), body.assignee))


@router.post(
    "/patterns/{pattern_id}/comment",
    auth=ADMIN_WITH_BODY,
    response={200: PatternSchema},
    summary="Comment on a pattern",
)
def comment_pattern(request: ApiRequest, pattern_id: str, body: Body[CommentRequestSchema]) -> HttpResponse:
    """Add a comment to the activity."""
    return _changed(request, services.comment(*target(request, pattern_id), body.note))


@router.post(
    "/patterns/{pattern_id}/mute",
    auth=ADMIN_WITH_BODY,
    response={200: PatternSchema},
    summary="Mute a pattern",
)
def mute_pattern(request: ApiRequest, pattern_id: str, body: Body[MuteRequestSchema]) -> HttpResponse:
    """Send no notifications about the pattern until a given time, or until it gets worse."""
    until = body.until
    if until is None and body.hours is not None:
        until = timezone.now() + timedelta(hours=body.hours)
    return _changed(
        request,
        services.mute(
            *target(request, pattern_id), until=until, until_worse=body.until_worse, reason=body.reason
        ),
    )


@router.post(
    "/patterns/{pattern_id}/unmute",
    auth=ADMIN,
    response={200: PatternSchema},
    summary="Unmute a pattern",
)
def unmute_pattern(request: ApiRequest, pattern_id: str) -> HttpResponse:
    """End the mute. Alerts for incidents that are still open and were never sent are sent once."""
    return _changed(request, services.unmute(*target(request, pattern_id)))


@router.post(
    "/patterns/{pattern_id}/acknowledge",
    auth=ADMIN,
    response={200: PatternSchema},
    summary="Acknowledge a pattern",
    openapi_extra=described(NoteRequestSchema),
)
def acknowledge_pattern(request: ApiRequest, pattern_id: str) -> HttpResponse:
    """Acknowledge all its open and snoozed incidents. If there are very many, a worker continues."""
    note = optional_body(request, NoteRequestSchema).note
    return _changed(request, services.acknowledge(*target(request, pattern_id), note))


@router.post(
    "/patterns/{pattern_id}/resolve",
    auth=ADMIN,
    response={200: PatternSchema},
    summary="Resolve a pattern",
    openapi_extra=described(NoteRequestSchema),
)
def resolve_pattern(request: ApiRequest, pattern_id: str) -> HttpResponse:
    """Resolve the pattern and its incidents. If its loop is detected again, the pattern reopens."""
    note = optional_body(request, NoteRequestSchema).note
    return _changed(request, services.resolve(*target(request, pattern_id), note))


@router.post(
    "/patterns/{pattern_id}/label",
    auth=ADMIN_WITH_BODY,
    response={200: PatternSchema},
    summary="Label a pattern",
)
def label_pattern(
    request: ApiRequest, pattern_id: str, body: Body[LabelPatternRequestSchema]
) -> HttpResponse:
    """Record whether the pattern and all its incidents were loops."""
    return _changed(request, services.label(*target(request, pattern_id), body.label, body.note))


@router.post(
    "/patterns/{pattern_id}/undo",
    auth=ADMIN,
    response={200: PatternSchema},
    summary="Undo the last action",
)
def undo_pattern_action(request: ApiRequest, pattern_id: str) -> HttpResponse:
    """Undo the last action of this key on the pattern and its incidents, within ten minutes."""
    return _changed(request, services.undo(*target(request, pattern_id)))
