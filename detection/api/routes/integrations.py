"""Routes of integrations, agents and keys: when each was last active, and what can be done to it."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Router

from detection.api.auth import ADMIN, READ
from detection.api.requests import ApiRequest
from detection.api.responses import list_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.integrations import AgentSchema, IntegrationSchema, KeySchema
from detection.models import ApiKey
from detection.selectors.integrations import heard_agents, heard_integrations, heard_key
from detection.selectors.row_fields import document_of
from detection.services.tags import agent_tags

router = Router(tags=["integrations"])
MAX_KEYS = 200


@router.get(
    "/integrations",
    auth=READ,
    response={200: PageSchema[IntegrationSchema]},
    summary="List integrations",
)
def list_integrations(request: ApiRequest) -> HttpResponse:
    """List the integrations of the last seven days, most recently active first."""
    found = heard_integrations(request.principal.project_id)
    return list_response(document_of(one, IntegrationSchema) for one in found)


@router.get("/agents", auth=READ, response={200: PageSchema[AgentSchema]}, summary="List agents")
def list_agents(request: ApiRequest) -> HttpResponse:
    """List the agents of the last seven days and what can be done to each, most recently active first."""
    project_id = request.principal.project_id
    tags = agent_tags(project_id)
    return list_response(
        document_of(one) | {"tags": tags.get(one.name, [])} for one in heard_agents(project_id)
    )


@router.get("/keys", auth=ADMIN, response={200: PageSchema[KeySchema]}, summary="List keys")
def list_keys(request: ApiRequest) -> HttpResponse:
    """List the project's latest 200 keys, the newest first. Their tokens are not stored."""
    keys = ApiKey.objects.filter(project_id=request.principal.project_id).order_by("-created_at", "-pk")
    return list_response(_key_document(key) for key in keys[:MAX_KEYS])


def _key_document(key: ApiKey) -> dict[str, object]:
    heard = heard_key(key)
    return document_of(
        key,
        KeySchema,
        last_heard_at=heard and heard.last_heard_at,
        heard_on=[*heard.routes] if heard else [],
        reach=heard and heard.reach,
    )
