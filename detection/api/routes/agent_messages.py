"""Routes of messages that people leave for agents, and of the tags of agents and keys."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.query_parameters import check_parameters, existing_name, session_name, target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response, list_response
from detection.api.schemas.agent_messages import (
    AgentMessageQuerySchema,
    AgentMessageRequestSchema,
    AgentMessageSchema,
    TagsSchema,
)
from detection.api.schemas.common import PageSchema
from detection.selectors import agent_messages as selector
from detection.selectors.row_fields import document_of
from detection.services import agent_messages, tags

router = Router(tags=["agents"])
_document = partial(document_of, kind=selector.AgentMessageRow)


@router.post(
    "/agent-messages",
    auth=ADMIN_WITH_BODY,
    response={201: AgentMessageSchema},
    summary="Create a message for an agent",
)
def create_agent_message(request: ApiRequest, body: Body[AgentMessageRequestSchema]) -> HttpResponse:
    """Leave a message for a session or an agent. It gets it once, with the next verdict on a call."""
    row = agent_messages.leave(
        request.principal.project_id,
        body.text,
        actor_of(request),
        session=session_name(request, body.session) if body.session else "",
        agent=request.principal.redactor.name(body.agent),
    )
    return json_response(_document(row), 201)


@router.get(
    "/agent-messages",
    auth=READ,
    response={200: PageSchema[AgentMessageSchema]},
    summary="List messages for agents",
)
def list_agent_messages(request: ApiRequest, query: Query[AgentMessageQuerySchema]) -> HttpResponse:
    """List messages, newest first. One is `delivered` only once it was handed out with a verdict."""
    check_parameters(request, AgentMessageQuerySchema)
    name = request.principal.redactor.name
    rows = selector.list_messages(
        request.principal.project_id, session=name(query.session), agent=name(query.agent), limit=query.limit
    )
    return list_response(_document(row) for row in rows)


@router.delete(
    "/agent-messages/{message_id}",
    auth=ADMIN,
    response={200: AgentMessageSchema},
    summary="Delete a message for an agent",
)
def delete_agent_message(request: ApiRequest, message_id: str) -> HttpResponse:
    """Withdraw a message that no agent has got yet."""
    return json_response(_document(agent_messages.withdraw(*target(request, message_id))))


@router.put(
    "/agents/{path:agent}/tags",
    auth=ADMIN_WITH_BODY,
    response={200: TagsSchema},
    summary="Update the tags of an agent",
)
def update_agent_tags(request: ApiRequest, agent: str, body: Body[TagsSchema]) -> HttpResponse:
    """Replace the tags of an agent."""
    name = request.principal.redactor.name(existing_name(agent))
    given = tags.set_agent_tags(request.principal.project_id, name, body.tags, actor_of(request))
    return json_response({"tags": given})


@router.put(
    "/keys/{key_id}/tags",
    auth=ADMIN_WITH_BODY,
    response={200: TagsSchema},
    summary="Update the tags of a key",
)
def update_key_tags(request: ApiRequest, key_id: str, body: Body[TagsSchema]) -> HttpResponse:
    """Replace the tags of a key."""
    project_id, name, actor = target(request, key_id)
    return json_response({"tags": tags.set_key_tags(project_id, name, body.tags, actor).tags})
