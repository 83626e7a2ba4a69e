"""Texts: what agents are told on each rung, a project's own or the default, and what a draft would look like to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

from django.http import HttpRequest, HttpResponse
from ninja import Body, Field, Path, Query, Router, Schema
from pydantic.config import JsonDict

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, actor, project_of
from detection.api.query_parameters import refuse_unknown
from detection.api.responses import answer, answer_nothing
from detection.api.schemas import Strict
from detection.engine.messages import Shape
from detection.models import Project
from detection.services.errors import NotFound
from detection.services.policies import message_templates as services
from detection.services.policies.message_templates import Text

router = Router(tags=["texts"])
Rung = Literal["warn", "chance", "block", "ask", "judge", "stop"]
# Told here and refused by the service, with a code of its own.
_LENGTH: JsonDict = {"maxLength": services.MAX_CHARACTERS}
AnyShape = Literal["", "text", "openai", "anthropic", "mcp", "claude_code"]


class ShapeQuery(Schema):
    """Which text of a rung is meant."""

    shape: AnyShape = Field("", description="A single wire shape; left out: the text for every shape.")


class TextOut(Schema):
    """A text as it holds now."""

    rung: Rung
    shape: AnyShape = Field(description="Empty: every shape that has no text of its own.")
    text: str = Field(
        description="As stored. A default is worded with placeholders that own texts do not have."
    )
    is_own: bool = Field(description="False: the default.")
    updated_at: datetime | None = Field(description="Of an own text.")


class TextsOut(Schema):
    """The texts of all rungs."""

    items: list[TextOut]
    placeholders: list[str] = Field(description="What own texts may name, as in $tool.")
    max_characters: int
    version: int = Field(description="Rises with every change of a text or setting of the project.")


class TextIn(Strict):
    """A text. A dollar sign is written $$."""

    text: str = Field(json_schema_extra={"minLength": 1, **_LENGTH})


class DraftIn(Strict):
    """What to look at."""

    rung: Rung
    text: str = Field("", description="Empty: the default.", json_schema_extra=_LENGTH)


class DraftOut(Schema):
    """What an agent would get for a search that it repeated four times."""

    rung: Rung
    message: str
    rendered: dict[Shape, dict[str, Any] | str] = Field(description="The message in every wire shape.")


def _document(text: Text) -> dict[str, Any]:
    return {
        "rung": text.rung,
        "shape": text.shape,
        "text": text.text,
        "is_own": text.is_own,
        "updated_at": text.updated_at,
    }


def _own(project_id: int, rung: str, shape: str) -> Text:
    for text in services.list_texts(project_id):
        if (text.rung, text.shape, text.is_own) == (rung, shape, True):
            return text
    raise NotFound("There is no text of the project's own here; the default holds.")


@router.get("/texts", auth=READ, response={200: TextsOut}, operation_id="listTexts", summary="List texts")
def list_texts(request: HttpRequest) -> HttpResponse:
    """List the text of every rung, and those that hold for a single wire shape."""
    project = Project.objects.only("policy_version").get(pk=project_of(request))
    return answer(
        {
            "items": [_document(text) for text in services.list_texts(project.pk)],
            "placeholders": services.PLACEHOLDERS,
            "max_characters": services.MAX_CHARACTERS,
            "version": project.policy_version,
        }
    )


@router.post(
    "/texts/preview",
    auth=ADMIN_WITH_BODY,
    response={200: DraftOut},
    operation_id="previewText",
    summary="Look at a draft",
)
def preview_text(request: HttpRequest, body: Body[DraftIn]) -> HttpResponse:
    """Show what agents would get with a draft, in every wire shape; nothing is stored."""
    rendered = {shape: services.preview(body.rung, shape, body.text) for shape in get_args(Shape)}
    return answer({"rung": body.rung, "message": rendered["text"], "rendered": rendered})


@router.put(
    "/texts/{rung}",
    auth=ADMIN_WITH_BODY,
    response={200: TextOut},
    operation_id="putText",
    summary="Replace a text",
)
def put_text(
    request: HttpRequest, rung: Path[Rung], query: Query[ShapeQuery], body: Body[TextIn]
) -> HttpResponse:
    """Replace a rung's text, for every wire shape or the one that the query names; it holds from the next verdict on."""
    refuse_unknown(request, ShapeQuery)
    project_id = project_of(request)
    services.check(rung, query.shape, body.text)
    services.save_text(project_id, rung, query.shape, body.text, actor(request))
    return answer(_document(_own(project_id, rung, query.shape)))


@router.delete(
    "/texts/{rung}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteText",
    summary="Bring a default text back",
)
def delete_text(request: HttpRequest, rung: Path[Rung], query: Query[ShapeQuery]) -> HttpResponse:
    """Remove the project's own text; the default holds again, or for a single shape the rung's text for all."""
    refuse_unknown(request, ShapeQuery)
    project_id = project_of(request)
    _own(project_id, rung, query.shape)
    services.save_text(project_id, rung, query.shape, "", actor(request))
    return answer_nothing()
