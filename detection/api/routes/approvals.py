"""Routes of approvals and remembered decisions. The ``live`` process serves the long poll; here nothing waits."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, ApiKeyAuth
from detection.api.pages import page_response, query_of
from detection.api.query_parameters import (
    RENDER_PARAMETER,
    check_parameter_names,
    existing_name,
    rendered_shape,
)
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response, list_response
from detection.api.schemas.approvals import (
    ApprovalQuerySchema,
    ApprovalSchema,
    DecisionRequestSchema,
    GroupDecisionSchema,
    HeldGroupQuerySchema,
    HeldGroupSchema,
    RememberedDecisionSchema,
    RulingLabelRequestSchema,
    RulingSchema,
    UndoneAnswerSchema,
)
from detection.api.schemas.common import PageSchema
from detection.integrations.hosts import HOSTS
from detection.models import KeyScope
from detection.selectors import approvals as selector
from detection.selectors import held_groups
from detection.selectors.lists import APPROVALS
from detection.selectors.row_fields import document_of
from detection.services.approvals import decisions as services
from detection.services.approvals import group_decisions, judge_consultation
from detection.services.errors import NotFound
from detection.services.tracking.documents import approval_document

router = Router(tags=["approvals"])
_wait = ApiKeyAuth(KeyScope.GUARD)


@router.get(
    "/approvals",
    auth=READ,
    response={200: PageSchema[ApprovalSchema]},
    summary="List approvals",
)
def list_approvals(request: ApiRequest, query: Query[ApprovalQuerySchema]) -> HttpResponse:
    """List approvals, newest first."""
    names = {"state": "is", "session": "session", "tool": "tool", "agent": "agent"}
    filters = query_of(request, APPROVALS, query, names)
    return page_response(request, query, filters, selector.list_approvals, approval_document)


@router.get(
    "/approvals/remembered",
    auth=READ,
    response={200: PageSchema[RememberedDecisionSchema]},
    summary="List remembered decisions",
)
def list_remembered_decisions(request: ApiRequest) -> HttpResponse:
    """List the decisions that apply to later sessions automatically."""
    rows = selector.remembered(request.principal.project_id)
    return list_response(document_of(row, RememberedDecisionSchema) for row in rows)


@router.delete(
    "/approvals/remembered/{int:remembered_id}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a remembered decision",
)
def delete_remembered_decision(request: ApiRequest, remembered_id: int) -> HttpResponse:
    """Delete a remembered decision. The next such call is held again."""
    if remembered_id >= 2**63:
        raise NotFound
    services.delete_remembered(request.principal.project_id, remembered_id, actor_of(request))
    return empty_response()


@router.get(
    "/approvals/groups",
    auth=READ,
    response={200: PageSchema[HeldGroupSchema]},
    summary="List groups of held calls",
)
def list_held_groups(request: ApiRequest, query: Query[HeldGroupQuerySchema]) -> HttpResponse:
    """List the calls that wait for a person by what one decision is for, the first deadline first.

    A group is a loop, a containment, or a call where there is neither. Filters are those of approvals.
    """
    names = {"session": "session", "tool": "tool", "agent": "agent"}
    filters = query_of(request, APPROVALS, query, names)
    return page_response(request, query, filters, held_groups.list_groups, _group_document)


def _group_document(group: held_groups.HeldGroup) -> dict[str, object]:
    return document_of(group, HeldGroupSchema, session=group.first.session.external_id)


@router.post(
    "/approvals/groups/{group}/decision",
    auth=ADMIN_WITH_BODY,
    response={200: GroupDecisionSchema},
    summary="Decide a group of held calls",
)
def decide_held_group(request: ApiRequest, group: str, body: Body[DecisionRequestSchema]) -> HttpResponse:
    """Decide all approvals of a group that wait now; calls that are held later wait for a decision of their own.

    Each is decided once: the response counts those that another person decided meanwhile. Responds 409
    `already_decided` if it decided none.
    """
    done = group_decisions.decide(
        request.principal.project_id,
        existing_name(group),
        body.choice,
        actor_of(request),
        raise_by=body.raise_by,
        remember=body.remember,
    )
    return json_response(document_of(done, GroupDecisionSchema))


@router.post(
    "/approvals/answers/{answer_id}/undo",
    auth=ADMIN,
    response={200: UndoneAnswerSchema},
    summary="Undo a decision about a group",
)
def undo_group_decision(request: ApiRequest, answer_id: str) -> HttpResponse:
    """Let calls wait again whose agent has not received the decision: within ten minutes, after `skip` or `allow_once`.

    Responds 409 `nothing_to_undo` if there are none.
    """
    undone = group_decisions.undo(request.principal.project_id, existing_name(answer_id), actor_of(request))
    return json_response(document_of(undone, UndoneAnswerSchema))


@router.get(
    "/approvals/{approval_id}",
    auth=_wait,
    response={200: ApprovalSchema},
    summary="Get an approval",
    openapi_extra={
        "parameters": [
            {
                "name": "wait",
                "in": "query",
                "schema": {"type": "number", "minimum": 0, "maximum": 60},
                "description": "Seconds to wait for the decision. Only at the address in `wait_url`.",
            },
            RENDER_PARAMETER,
            {
                "name": "call_id",
                "in": "query",
                "schema": {"type": "string"},
                "description": "The held call that `rendered` is for, where several wait for the approval.",
            },
            {
                "name": "hook",
                "in": "query",
                "schema": {"type": "string", "enum": [*HOSTS]},
                "description": "Respond to the hook of this coding "
                "agent, in its format. Only at the address in `wait_url`.",
            },
        ]
    },
)
def get_approval(request: ApiRequest, approval_id: str) -> HttpResponse:
    """Return an approval. This address responds at once; the one in `wait_url` long-polls for the decision."""
    check_parameter_names(request, ["wait", "render", "call_id"])
    shape = rendered_shape(request)
    approval = services.hand_out(request.principal.project_id, existing_name(approval_id))
    call_id = request.GET.get("call_id", "").replace("\x00", "")
    return json_response(approval_document(approval, shape, call_id))


@router.post(
    "/approvals/{approval_id}/decision",
    auth=ADMIN_WITH_BODY,
    response={200: ApprovalSchema},
    summary="Decide an approval",
)
def decide_approval(request: ApiRequest, approval_id: str, body: Body[DecisionRequestSchema]) -> HttpResponse:
    """Decide an approval. Responds 409 if it is closed: `already_decided`, `approval_expired`, `approval_withdrawn`."""
    approval = services.decide(
        request.principal.project_id,
        existing_name(approval_id),
        body.choice,
        actor_of(request),
        raise_by=body.raise_by,
        remember=body.remember,
    )
    return json_response(approval_document(approval))


@router.get(
    "/approvals/{approval_id}/ruling",
    auth=READ,
    response={200: RulingSchema},
    summary="Get the judge's ruling on an approval",
)
def get_ruling(request: ApiRequest, approval_id: str) -> HttpResponse:
    """Return the judge's ruling on an approval."""
    call = judge_consultation.ruling_on(request.principal.project_id, existing_name(approval_id))
    return json_response(document_of(call, RulingSchema))


@router.post(
    "/approvals/{approval_id}/ruling/label",
    auth=ADMIN_WITH_BODY,
    response={200: RulingSchema},
    summary="Label the judge's ruling on an approval",
)
def label_ruling(request: ApiRequest, approval_id: str, body: Body[RulingLabelRequestSchema]) -> HttpResponse:
    """Label a ruling as right or wrong, for statistics. Responds 409 `not_consulted` if the judge was not called."""
    call = judge_consultation.label_ruling(
        request.principal.project_id, existing_name(approval_id), body.label, actor_of(request)
    )
    return json_response(document_of(call, RulingSchema))
