"""Routes of suggestions, which are learned from labelled incidents."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import check_parameters, target
from detection.api.requests import ApiRequest
from detection.api.responses import empty_response, json_response
from detection.api.schemas.suggestions import (
    AcceptRequestSchema,
    MissingLabelsSchema,
    RejectRequestSchema,
    SuggestionQuerySchema,
    SuggestionSchema,
    SuggestionsSchema,
    TryRequestSchema,
)
from detection.api.schemas.what_if import WhatIfSchema
from detection.models import Project, Suggestion
from detection.selectors.row_fields import document_of
from detection.selectors.what_ifs import as_document
from detection.services.learning import decisions
from detection.services.learning.suggestions import MIN_LABELS, OpenSuggestion, learn
from detection.services.what_if.changes import ChangeDocument

router = Router(tags=["settings"])
MAX_DECIDED = 500


def _open(project_id: int, one: OpenSuggestion) -> dict[str, object]:
    change = one.change.as_dict()
    more = {"change": change, "what_if": _what_if(project_id, change), "incidents": [*one.incidents]}
    decision = {"state": "open", "decided_by": None, "decided_at": None, "note": ""}
    return document_of(one, SuggestionSchema, **more, **decision)


def _decided(row: Suggestion) -> dict[str, object]:
    what_if = _what_if(row.project_id, row.change)
    return document_of(
        row, SuggestionSchema, id=row.public_id, incidents=[], what_if=what_if, state=row.decision
    )


def _what_if(project_id: int, change: ChangeDocument) -> dict[str, object] | None:
    row = decisions.latest_what_if(project_id, change)
    if row is None:
        return None
    counts = {name: row.result[name]["count"] if row.result else None for name in ("lost", "gained")}
    return {"id": row.public_id, "state": row.state, **counts}


@router.get("/suggestions", auth=READ, response={200: SuggestionsSchema}, summary="List suggestions")
def list_suggestions(request: ApiRequest, query: Query[SuggestionQuerySchema]) -> HttpResponse:
    """List policy changes that labelled incidents support, or those that a person accepted or rejected."""
    check_parameters(request, SuggestionQuerySchema)
    project_id = request.principal.project_id
    learned = learn(Project.objects.get(pk=project_id))
    if query.state == "open":
        items = [_open(project_id, one) for one in learned.suggestions]
    else:
        rows = Suggestion.objects.filter(project_id=project_id, decision=query.state)[:MAX_DECIDED]
        items = [_decided(row) for row in rows]
    return json_response(
        {
            "items": items,
            "next_cursor": None,
            "labels": learned.labels,
            "needed": MIN_LABELS,
            "nearest": [document_of(one, MissingLabelsSchema) for one in learned.nearest],
        }
    )


@router.post(
    "/suggestions/{suggestion_id}/accept",
    auth=ADMIN_WITH_BODY,
    response={200: SuggestionSchema},
    summary="Accept a suggestion",
)
def accept_suggestion(
    request: ApiRequest, suggestion_id: str, body: Body[AcceptRequestSchema]
) -> HttpResponse:
    """Save the change of a suggestion; it takes effect on the next call. It is audited like any other policy change."""
    row = decisions.accept(*target(request, suggestion_id), note=body.note, expires_at=body.expires_at)
    return json_response(_decided(row))


@router.post(
    "/suggestions/{suggestion_id}/reject",
    auth=ADMIN_WITH_BODY,
    response={200: SuggestionSchema},
    summary="Reject a suggestion",
)
def reject_suggestion(
    request: ApiRequest, suggestion_id: str, body: Body[RejectRequestSchema]
) -> HttpResponse:
    """Reject a suggestion. It is not suggested again."""
    return json_response(_decided(decisions.reject(*target(request, suggestion_id), note=body.note)))


@router.post(
    "/suggestions/{suggestion_id}/undo",
    auth=ADMIN,
    response={204: None},
    summary="Undo a decision about a suggestion",
)
def undo_suggestion(request: ApiRequest, suggestion_id: str) -> HttpResponse:
    """Restore the policy before an accepted suggestion, and list a rejected one again."""
    decisions.undo(*target(request, suggestion_id))
    return empty_response()


@router.post(
    "/suggestions/{suggestion_id}/what-if",
    auth=ADMIN_WITH_BODY,
    response={202: WhatIfSchema},
    summary="Create the what-if of a suggestion",
)
def try_suggestion(request: ApiRequest, suggestion_id: str, body: Body[TryRequestSchema]) -> HttpResponse:
    """Create a what-if of the suggestion: a worker replays the sessions of the past days with and without it."""
    row = decisions.try_on_history(*target(request, suggestion_id), days=body.days)
    page = f"{settings.PUBLIC_URL}/p/{request.principal.project_slug}/policies/what-ifs/{row.public_id}"
    return json_response({**as_document(row), "links": {"what_if": page}}, 202)
