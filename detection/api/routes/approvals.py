"""Approvals: what held calls wait on, and answering. Waiting for an answer is served by ``live``; here nothing waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Body, Field, Query, Router, Schema

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, ApiKey, actor, project_of
from detection.api.problems import Problem
from detection.api.query_parameters import existing_name, refuse_unknown
from detection.api.responses import answer, answer_list, answer_nothing
from detection.api.schemas import Listed, Strict, Word
from detection.engine import messages
from detection.models import Scope
from detection.selectors import approvals as selector
from detection.selectors.approvals import ApprovalFilters
from detection.services.approvals import resolution as services
from detection.services.approvals.documents import approval_document
from detection.services.errors import NotFound

router = Router(tags=["approvals"])
_wait = ApiKey(Scope.GUARD)


class ApprovalQuery(Schema):
    """Filters of the approval list."""

    state: Literal["", "open", "decided", "expired", "withdrawn"] = ""
    session: Word = ""
    tool: Word = ""
    agent: Word = ""
    cursor: Word = ""
    limit: int = Field(50, ge=1, le=500)


class ApprovalOut(Schema):
    """An approval and, once it is closed, its answer."""

    id: str
    state: Literal["open", "decided", "expired", "withdrawn"]
    decider: Literal["person", "judge"]
    session: str
    agent: str
    tool: str
    call_id: str
    held_calls: int = Field(description="How many calls wait for this answer.")
    kind: str
    count: int
    limit: int
    summary: str
    incident: str | None
    requested_at: datetime
    deadline: datetime
    unattended: Literal["block", "stop", "allow", "disable"] = Field(
        description="What happens without an answer."
    )
    decision: Literal["allow", "block", "stop"] | None = Field(description="Null while it is open.")
    choice: Literal["skip", "allow_once", "raise", "exempt", "disable"] | None
    raised_by: int
    message: str = Field(description="What the agent is to be told.")
    reason: str = Field(description="Stable code: answered, remembered, unanswered, accepted, denied, …")
    decided_by: str | None
    decided_at: datetime | None
    wait_url: str
    rendered: dict[str, Any] | str | None = Field(
        None, description="With ?render: the message in that wire shape."
    )


class DecisionIn(Strict):
    """One of five answers."""

    choice: Literal["skip", "allow_once", "raise", "exempt", "disable"]
    by: int = Field(0, ge=0, le=services.MAX_RAISE, description="For raise: by how much.")
    remember: bool = Field(
        False, description="Answer later sessions of this agent and tool alike, for 90 days."
    )


class RememberedOut(Schema):
    """An answer that holds for later sessions."""

    id: int
    agent: str
    tool: str
    kind: str
    choice: str
    raised_by: int
    times_used: int
    created_by: str
    created_at: datetime
    expires_at: datetime


@router.get(
    "/approvals",
    auth=READ,
    response={200: Listed[ApprovalOut]},
    operation_id="listApprovals",
    summary="List approvals",
)
def list_approvals(request: HttpRequest, query: Query[ApprovalQuery]) -> HttpResponse:
    """List what held calls wait on, the newest first."""
    refuse_unknown(request, ApprovalQuery)
    filters = ApprovalFilters(**query.dict(exclude={"cursor", "limit"}))
    page = selector.list_approvals(project_of(request), filters, query.cursor, query.limit)
    return answer_list((approval_document(row) for row in page.items), page.next_cursor)


@router.get(
    "/approvals/remembered",
    auth=READ,
    response={200: Listed[RememberedOut]},
    operation_id="listRememberedAnswers",
    summary="List remembered answers",
)
def list_remembered(request: HttpRequest) -> HttpResponse:
    """List the answers that later sessions get without asking."""
    rows = selector.remembered(project_of(request))
    return answer_list(
        {name: getattr(row, name) for name in RememberedOut.model_fields if name != "id"} | {"id": row.pk}
        for row in rows
    )


@router.delete(
    "/approvals/remembered/{int:remembered_id}",
    auth=ADMIN,
    response={204: None},
    operation_id="forgetAnswer",
    summary="Forget a remembered answer",
)
def forget(request: HttpRequest, remembered_id: int) -> HttpResponse:
    """Take a remembered answer back: the next session is asked about again."""
    if remembered_id >= 2**63:
        raise NotFound("There is no such remembered answer in this project.")
    services.forget(project_of(request), remembered_id, actor(request))
    return answer_nothing()


@router.get(
    "/approvals/{approval_id}",
    auth=_wait,
    response={200: ApprovalOut},
    operation_id="getApproval",
    summary="Look at an approval, or wait for its answer",
    openapi_extra={
        "parameters": [
            {
                "name": "wait",
                "in": "query",
                "schema": {"type": "number", "minimum": 0, "maximum": 60},
                "description": "At the address of `wait_url` only: how many seconds to wait for the answer.",
            },
            {"name": "render", "in": "query", "schema": {"type": "string", "enum": [*messages.SHAPES]}},
        ]
    },
)
def get_approval(request: HttpRequest, approval_id: str) -> HttpResponse:
    """Return an approval as it stands. The address in `wait_url` waits for the answer; this one answers at once."""
    unknown = request.GET.keys() - {"wait", "render"}
    if unknown:
        raise Problem(422, "unknown_parameter", "There are: wait, render.", path=min(unknown)[:60])
    shape = request.GET.get("render", "")
    if shape and shape not in messages.SHAPES:
        raise Problem(422, "invalid_value", f"Must be one of {', '.join(messages.SHAPES)}.", path="render")
    approval = services.find(project_of(request), existing_name(approval_id))
    return answer(approval_document(approval, shape))


@router.post(
    "/approvals/{approval_id}/decision",
    auth=ADMIN_WITH_BODY,
    response={200: ApprovalOut},
    operation_id="decideApproval",
    summary="Decide an approval",
)
def decide_approval(request: HttpRequest, approval_id: str, body: Body[DecisionIn]) -> HttpResponse:
    """Decide an approval; it decides for the call that waits. Refused with 409 and `already_decided`, `approval_expired` or `approval_withdrawn`."""
    approval = services.decide(
        project_of(request),
        existing_name(approval_id),
        body.choice,
        actor(request),
        by=body.by,
        remember=body.remember,
    )
    return answer(approval_document(approval))
