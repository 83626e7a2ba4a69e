"""Routes of loops and actions on them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from functools import partial

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.pages import bulk_response, export_response, page_response, query_of
from detection.api.query_parameters import check_parameters, existing, existing_name, target
from detection.api.requests import ApiRequest
from detection.api.responses import LIST_AS_FILE, json_response, list_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.incidents import ActivitySchema
from detection.api.schemas.loops import (
    AssignRequestSchema,
    BulkLoopActionRequestSchema,
    BulkLoopActionResultSchema,
    CommentRequestSchema,
    ConfirmRequestSchema,
    FineChoiceSchema,
    FineQuerySchema,
    FineRequestSchema,
    LaterRequestSchema,
    LoopChangesQuerySchema,
    LoopChangesSchema,
    LoopCountsSchema,
    LoopDetailSchema,
    LoopExportQuerySchema,
    LoopFiltersSchema,
    LoopQuerySchema,
    LoopSchema,
    NoteRequestSchema,
)
from detection.api.typed_bodies import described, optional_body
from detection.filtering.language import term
from detection.models import Loop
from detection.selectors import dashboard, incidents, loops
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import INCIDENTS, LOOPS
from detection.selectors.row_fields import document_of
from detection.services.exceptions import fine as verbs
from detection.services.incidents import loop_triage as services
from detection.web.documents import incident_document, loop_document

router = Router(tags=["loops"])
MAX_INCIDENTS, MAX_ACTIVITY = 50, 200
_PARAMETERS = {"status": "is", "assignee": "owner", "kind": "detector"} | {
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
    elif body.action == "later":
        more = {"until": body.until, "until_worse": body.until_worse, "reason": body.reason}
    elif body.action == "fine":
        more = {
            "reason": body.reason, "note": body.note, "where": body.where, "expires_at": body.expires_at,
        }  # fmt: skip
    elif body.action in ("done", "confirm"):
        more = {"note": body.note}
    return bulk_response(request, verbs.bulk, body.ids, body.action, **more)


@router.get(
    "/loops/changes",
    auth=READ,
    response={200: LoopChangesSchema},
    summary="List loops that changed",
)
def list_loop_changes(request: ApiRequest, query: Query[LoopChangesQuerySchema]) -> HttpResponse:
    """List at most 50 open loops that are new, returned or worse since a time, the newest incident first."""
    check_parameters(request, LoopChangesQuerySchema)
    principal = request.principal
    since = query.since or timezone.now() - loops.TREND_SPAN
    found = loops.changes_since(principal.project_id, since)
    items = [{"change": one.change, **loop_document(one.loop, principal.project_slug)} for one in found]
    return json_response({"since": since, "items": items})


@router.get(
    "/loop-counts",
    auth=READ,
    response={200: LoopCountsSchema},
    summary="Get the number of loops by status",
)
def get_loop_counts(request: ApiRequest, query: Query[LoopFiltersSchema]) -> HttpResponse:
    """Get the number of loops by status, under the same filters as the list, and how many sessions loop now."""
    check_parameters(request, LoopFiltersSchema)
    project_id = request.principal.project_id
    counts = asdict(loops.status_counts(project_id, _query(request, query)))
    return json_response(counts | {"looping_sessions": dashboard.looping_sessions(project_id)})


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
    document["trend_by_day"] = [*loops.trend_by_day(loop)]
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
    "/loops/{loop_id}/done",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Close a loop",
    openapi_extra=described(NoteRequestSchema),
)
def close_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Close the loop and its incidents. If it is detected again, it opens: it has returned."""
    note = optional_body(request, NoteRequestSchema).note
    return _changed(request, services.done(*target(request, loop_id), note))


@router.post(
    "/loops/{loop_id}/later",
    auth=ADMIN_WITH_BODY,
    response={200: LoopSchema},
    summary="Put off a loop",
)
def postpone_loop(request: ApiRequest, loop_id: str, body: Body[LaterRequestSchema]) -> HttpResponse:
    """Hide the loop and send no notifications about it until a given time, or until it gets worse."""
    until = body.until
    if until is None and body.hours is not None:
        until = timezone.now() + timedelta(hours=body.hours)
    return _changed(
        request,
        services.later(
            *target(request, loop_id), until=until, until_worse=body.until_worse, reason=body.reason
        ),
    )


@router.get(
    "/loops/{loop_id}/fine",
    auth=READ,
    response={200: PageSchema[FineChoiceSchema]},
    summary="List where a loop may be fine",
)
def list_fine_choices(request: ApiRequest, loop_id: str, query: Query[FineQuerySchema]) -> HttpResponse:
    """List the exceptions for the newest incident of the loop, narrowest first. Each can be tried as a what-if."""
    check_parameters(request, FineQuerySchema)
    project_id, public_id = request.principal.project_id, existing_name(loop_id)
    return list_response(
        {
            "where": choice.where,
            "words": f"{choice.option.where}: {choice.option.words}",
            "settings": [*choice.option.settings],
            "change": choice.option.change.as_dict(),
        }
        for choice in verbs.choices(project_id, public_id, query.reason)
    )


@router.post(
    "/loops/{loop_id}/fine",
    auth=ADMIN_WITH_BODY,
    response={200: LoopSchema},
    summary="Accept a loop",
)
def accept_loop(request: ApiRequest, loop_id: str, body: Body[FineRequestSchema]) -> HttpResponse:
    """Say that the loop is fine: its incidents get the label "not a loop", and an exception is saved for `where`."""
    return _changed(
        request,
        verbs.fine(
            *target(request, loop_id),
            body.reason,
            body.note,
            where=body.where,
            run=body.run,
            expires_at=body.expires_at,
            siblings=body.siblings,
        ),
    )


@router.post(
    "/loops/{loop_id}/confirm",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Confirm a loop",
    openapi_extra=described(ConfirmRequestSchema),
)
def confirm_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Label the loop and its incidents, or one `run` alone, as loops, which suggestions learn from."""
    body = optional_body(request, ConfirmRequestSchema)
    return _changed(request, services.confirm(*target(request, loop_id), body.note, run=body.run))


@router.post(
    "/loops/{loop_id}/reopen",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Reopen a loop",
)
def reopen_loop(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Bring back a loop that was put off, or else remove its labels. Alerts that it hid are sent once."""
    return _changed(request, services.reopen(*target(request, loop_id)))


@router.post(
    "/loops/{loop_id}/undo",
    auth=ADMIN,
    response={200: LoopSchema},
    summary="Undo the last action",
)
def undo_loop_action(request: ApiRequest, loop_id: str) -> HttpResponse:
    """Undo the last action of this key on the loop and its incidents, within ten minutes."""
    return _changed(request, verbs.undo(*target(request, loop_id)))
