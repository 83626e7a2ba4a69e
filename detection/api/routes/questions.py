"""Questions: what held calls wait on, and answering. Waiting for an answer is served by ``live``; here nothing waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Body, Field, Query, Router, Schema

from detection.api.answers import answer, answer_list, answer_nothing
from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, ApiKey, actor, project_of
from detection.api.problems import Problem
from detection.api.queries import existing_name, refuse_unknown
from detection.api.schemas import Listed, Strict, Word
from detection.engine import texts
from detection.models import Scope
from detection.selectors import questions as selector
from detection.selectors.questions import QuestionFilters
from detection.services import questions as services
from detection.services.errors import NotFound
from detection.services.question_documents import question_document

router = Router(tags=["questions"])
_wait = ApiKey(Scope.GUARD)


class QuestionQuery(Schema):
    """Filters of the question list."""

    state: Literal["", "open", "answered", "expired", "withdrawn"] = ""
    session: Word = ""
    tool: Word = ""
    agent: Word = ""
    cursor: Word = ""
    limit: int = Field(50, ge=1, le=500)


class QuestionOut(Schema):
    """A question and, once it is closed, its answer."""

    id: str
    state: Literal["open", "answered", "expired", "withdrawn"]
    asked_of: Literal["person", "judge"]
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
    asked_at: datetime
    deadline: datetime
    unattended: Literal["block", "stop", "allow", "disable"] = Field(
        description="What happens without an answer."
    )
    decision: Literal["allow", "block", "stop"] | None = Field(description="Null while it is open.")
    choice: Literal["skip", "allow_once", "raise", "exempt", "disable"] | None
    raised_by: int
    message: str = Field(description="What the agent is to be told.")
    reason: str = Field(description="Stable code: answered, remembered, unanswered, accepted, denied, …")
    answered_by: str | None
    answered_at: datetime | None
    wait_url: str
    rendered: dict[str, Any] | str | None = Field(
        None, description="With ?render: the message in that wire shape."
    )


class AnswerIn(Strict):
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
    "/questions",
    auth=READ,
    response={200: Listed[QuestionOut]},
    operation_id="listQuestions",
    summary="List questions",
)
def list_questions(request: HttpRequest, query: Query[QuestionQuery]) -> HttpResponse:
    """List what held calls wait on, the newest first."""
    refuse_unknown(request, QuestionQuery)
    filters = QuestionFilters(**query.dict(exclude={"cursor", "limit"}))
    page = selector.list_questions(project_of(request), filters, query.cursor, query.limit)
    return answer_list((question_document(row) for row in page.items), page.next_cursor)


@router.get(
    "/questions/remembered",
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
    "/questions/remembered/{int:remembered_id}",
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
    "/questions/{question_id}",
    auth=_wait,
    response={200: QuestionOut},
    operation_id="getQuestion",
    summary="Look at a question, or wait for its answer",
    openapi_extra={
        "parameters": [
            {
                "name": "wait",
                "in": "query",
                "schema": {"type": "number", "minimum": 0, "maximum": 60},
                "description": "At the address of `wait_url` only: how many seconds to wait for the answer.",
            },
            {"name": "render", "in": "query", "schema": {"type": "string", "enum": [*texts.SHAPES]}},
        ]
    },
)
def get_question(request: HttpRequest, question_id: str) -> HttpResponse:
    """Return a question as it stands. The address in `wait_url` waits for the answer; this one answers at once."""
    unknown = request.GET.keys() - {"wait", "render"}
    if unknown:
        raise Problem(422, "unknown_parameter", "There are: wait, render.", path=min(unknown)[:60])
    shape = request.GET.get("render", "")
    if shape and shape not in texts.SHAPES:
        raise Problem(422, "invalid_value", f"Must be one of {', '.join(texts.SHAPES)}.", path="render")
    question = services.find(project_of(request), existing_name(question_id))
    return answer(question_document(question, shape))


@router.post(
    "/questions/{question_id}/answer",
    auth=ADMIN_WITH_BODY,
    response={200: QuestionOut},
    operation_id="answerQuestion",
    summary="Answer a question",
)
def answer_question(request: HttpRequest, question_id: str, body: Body[AnswerIn]) -> HttpResponse:
    """Answer a question; it decides for the call that waits. Refused with 409 and `already_answered`, `question_expired` or `question_withdrawn`."""
    question = services.answer(
        project_of(request),
        existing_name(question_id),
        body.choice,
        actor(request),
        by=body.by,
        remember=body.remember,
    )
    return answer(question_document(question))
