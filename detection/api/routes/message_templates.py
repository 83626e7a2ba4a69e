"""Routes of the message templates, with a preview."""

from __future__ import annotations

from typing import get_args

from django.http import HttpResponse
from ninja import Body, Path, Query, Router
from pydantic.config import JsonDict

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response
from detection.api.schemas.message_templates import (
    MessageTemplateListSchema,
    MessageTemplateRequestSchema,
    MessageTemplateSchema,
    PreviewRequestSchema,
    PreviewSchema,
    RungName,
    ShapeQuerySchema,
)
from detection.engine.wire_shapes import Shape
from detection.models import Project
from detection.selectors.row_fields import document_of
from detection.services.errors import NotFound
from detection.services.policies import message_templates as services
from detection.services.policies.message_templates import EffectiveTemplate

router = Router(tags=["message templates"])
# Documented here; the service checks it, with a code of its own.
_LENGTH: JsonDict = {"maxLength": services.MAX_CHARACTERS}


def _own(project_id: int, rung: str, shape: str) -> EffectiveTemplate:
    for template in services.list_templates(project_id):
        if (template.rung, template.shape, template.is_own) == (rung, shape, True):
            return template
    raise NotFound


@router.get(
    "/message-templates",
    auth=READ,
    response={200: MessageTemplateListSchema},
    summary="List message templates",
)
def list_message_templates(request: ApiRequest) -> HttpResponse:
    """List the message template of every rung, and those for a single wire shape."""
    project = Project.objects.only("policy_version").get(pk=request.principal.project_id)
    return json_response(
        {
            "items": [
                document_of(template, MessageTemplateSchema)
                for template in services.list_templates(project.pk)
            ],
            "placeholders": services.PLACEHOLDERS,
            "max_characters": services.MAX_CHARACTERS,
            "version": project.policy_version,
        }
    )


@router.post(
    "/message-templates/preview",
    auth=ADMIN_WITH_BODY,
    response={200: PreviewSchema},
    summary="Preview a message template",
)
def preview_message_template(request: ApiRequest, body: Body[PreviewRequestSchema]) -> HttpResponse:
    """Show what agents would receive with a template, in every wire shape. Nothing is stored."""
    rendered = {shape: services.preview(body.rung, shape, body.text) for shape in get_args(Shape)}
    return json_response({"rung": body.rung, "message": rendered["text"], "rendered": rendered})


@router.put(
    "/message-templates/{rung}",
    auth=ADMIN_WITH_BODY,
    response={200: MessageTemplateSchema},
    summary="Update a message template",
)
def put_message_template(
    request: ApiRequest,
    rung: Path[RungName],
    query: Query[ShapeQuerySchema],
    body: Body[MessageTemplateRequestSchema],
) -> HttpResponse:
    """Replace the message template of a rung, for all wire shapes or the query's. Takes effect on the next call."""
    check_parameters(request, ShapeQuerySchema)
    project_id = request.principal.project_id
    services.check(rung, query.shape, body.text)
    services.save_template(project_id, rung, query.shape, body.text, actor_of(request))
    return json_response(document_of(_own(project_id, rung, query.shape), MessageTemplateSchema))


@router.delete(
    "/message-templates/{rung}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a message template",
)
def delete_message_template(
    request: ApiRequest, rung: Path[RungName], query: Query[ShapeQuerySchema]
) -> HttpResponse:
    """Delete a custom template.

    The default applies again or, for a single shape, the rung's template for all shapes.
    """
    check_parameters(request, ShapeQuerySchema)
    project_id = request.principal.project_id
    _own(project_id, rung, query.shape)
    services.save_template(project_id, rung, query.shape, "", actor_of(request))
    return empty_response()
