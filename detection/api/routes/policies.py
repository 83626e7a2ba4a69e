"""Overrides, tool rules and the effective policy.

The server's override applies to every project, so a project's key can read but not change it. A model name with
slashes must be percent-encoded in the path: the first segment is the backend, the rest the model. A backend whose
name contains a slash is given in the query of `/overrides`: `?backend=…&model=…`.

`If-Match` with the version of an earlier response rejects a change if someone else has changed the object since (412).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q
from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters, existing, existing_name, session_name
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import (
    empty_response,
    json_response,
    list_response,
)
from detection.api.schemas.common import PageSchema
from detection.api.schemas.settings import (
    EffectivePolicySchema,
    OverrideListQuerySchema,
    OverrideQuerySchema,
    OverrideRemovalQuerySchema,
    OverrideRequestSchema,
    OverrideSchema,
    PolicyQuerySchema,
    RemovalQuerySchema,
    ToolRuleRequestSchema,
    ToolRuleSchema,
)
from detection.api.setting_errors import setting_errors
from detection.api.typed_bodies import described
from detection.api.versions import CONDITIONAL, CONDITIONAL_PUT, expected_version, with_version
from detection.engine.policy import PolicyError
from detection.engine.scopes import Scope
from detection.models import Override, Project, StoredSettings, ToolOverride
from detection.selectors import policies, sessions
from detection.selectors.row_fields import document_of
from detection.services.policies import overrides as services
from detection.strict_json import shorten

router = Router(tags=["settings"])
_OVERRIDE_BODY = described(OverrideRequestSchema, required=True) | CONDITIONAL_PUT


def _scope(agent: str = "", backend: str = "", model: str = "") -> Scope:
    try:
        return Scope.of(agent, backend, model)
    except PolicyError as error:
        raise Problem(422, "missing", str(error), path=error.field) from error


@router.get(
    "/overrides",
    auth=READ,
    response={200: PageSchema[OverrideSchema]},
    summary="List overrides",
)
def list_overrides(request: ApiRequest, query: Query[OverrideListQuerySchema]) -> HttpResponse:
    """List the overrides that can apply to this project, including those of the server, widest scope first."""
    check_parameters(request, OverrideListQuerySchema)
    rows = Override.objects.filter(Q(project_id=request.principal.project_id) | Q(project=None)).in_effect()
    if query.agent:
        rows = rows.filter(agent=query.agent)
    if query.backend:
        rows = rows.filter(backend=query.backend)
    if query.model:
        rows = rows.filter(model=query.model)
    ordered = sorted(rows, key=lambda row: (row.scope.rank, row.agent, row.backend, row.model))
    return list_response(document_of(row, OverrideSchema) for row in ordered)


@router.put(
    "/overrides",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    summary="Update an override",
    openapi_extra=_OVERRIDE_BODY,
)
def put_override(
    request: ApiRequest, query: Query[OverrideQuerySchema], body: Body[dict[str, Any]]
) -> HttpResponse:
    """Replace the override of the project, or of the backend and model in the query."""
    check_parameters(request, OverrideQuerySchema)
    return _put(request, _scope("", query.backend, query.model), body)


@router.delete(
    "/overrides",
    auth=ADMIN,
    response={204: None},
    summary="Delete an override",
    openapi_extra=CONDITIONAL,
)
def delete_override(request: ApiRequest, query: Query[OverrideRemovalQuerySchema]) -> HttpResponse:
    """Delete the override of the project, or of the backend and model in the query."""
    check_parameters(request, OverrideRemovalQuerySchema)
    return _delete(request, _scope("", query.backend, query.model), query.note)


@router.get(
    "/overrides/{backend}/{path:model}",
    auth=READ,
    response={200: OverrideSchema},
    summary="Get the override of a model",
)
def get_model_override(request: ApiRequest, backend: str, model: str) -> HttpResponse:
    """Return the override of a backend's model."""
    return _get(request, _scope("", backend, model))


@router.put(
    "/overrides/{backend}/{path:model}",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    summary="Update the override of a model",
    openapi_extra=_OVERRIDE_BODY,
)
def put_model_override(
    request: ApiRequest, backend: str, model: str, body: Body[dict[str, Any]]
) -> HttpResponse:
    """Replace the override of a backend's model. Missing settings are inherited."""
    return _put(request, _scope("", backend, model), body)


@router.delete(
    "/overrides/{backend}/{path:model}",
    auth=ADMIN,
    response={204: None},
    summary="Delete the override of a model",
    openapi_extra=CONDITIONAL,
)
def delete_model_override(
    request: ApiRequest, backend: str, model: str, query: Query[RemovalQuerySchema]
) -> HttpResponse:
    """Delete the override of a backend's model."""
    return _delete(request, _scope("", backend, model), query.note)


@router.get(
    "/overrides/{backend}",
    auth=READ,
    response={200: OverrideSchema},
    summary="Get the override of a backend",
)
def get_backend_override(request: ApiRequest, backend: str) -> HttpResponse:
    """Return the override of a backend."""
    return _get(request, _scope("", backend))


@router.put(
    "/overrides/{backend}",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    summary="Update the override of a backend",
    openapi_extra=_OVERRIDE_BODY,
)
def put_backend_override(request: ApiRequest, backend: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """Replace the override of a backend. Missing settings are inherited."""
    return _put(request, _scope("", backend), body)


@router.delete(
    "/overrides/{backend}",
    auth=ADMIN,
    response={204: None},
    summary="Delete the override of a backend",
    openapi_extra=CONDITIONAL,
)
def delete_backend_override(
    request: ApiRequest, backend: str, query: Query[RemovalQuerySchema]
) -> HttpResponse:
    """Delete the override of a backend."""
    return _delete(request, _scope("", backend), query.note)


@router.get(
    "/agent-overrides/{path:agent}",
    auth=READ,
    response={200: OverrideSchema},
    summary="Get the override of an agent",
)
def get_agent_override(request: ApiRequest, agent: str) -> HttpResponse:
    """Return the override of an agent."""
    return _get(request, _scope(agent))


@router.put(
    "/agent-overrides/{path:agent}",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    summary="Update the override of an agent",
    openapi_extra=_OVERRIDE_BODY,
)
def put_agent_override(request: ApiRequest, agent: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """Replace the override of an agent. Missing settings are inherited."""
    return _put(request, _scope(agent), body)


@router.delete(
    "/agent-overrides/{path:agent}",
    auth=ADMIN,
    response={204: None},
    summary="Delete the override of an agent",
    openapi_extra=CONDITIONAL,
)
def delete_agent_override(request: ApiRequest, agent: str, query: Query[RemovalQuerySchema]) -> HttpResponse:
    """Delete the override of an agent."""
    return _delete(request, _scope(agent), query.note)


def _existing(scope: Scope) -> Scope:
    """Return a scope whose names can exist."""
    for name in (scope.agent, scope.backend, scope.model, scope.pattern):
        existing_name(name)
    return scope


def _get(request: ApiRequest, scope: Scope) -> HttpResponse:
    rows = policies.rows_at(request.principal.project_id, _existing(scope))
    return _response(existing(rows.in_effect().first()))


def _response(row: StoredSettings) -> HttpResponse:
    schema = ToolRuleSchema if isinstance(row, ToolOverride) else OverrideSchema
    return with_version(json_response(document_of(row, schema)), services.override_version(row))


def _put(request: ApiRequest, scope: Scope, body: dict[str, Any]) -> HttpResponse:
    given = _override_in(body)
    project_id = request.principal.project_id
    version = expected_version(request)
    with setting_errors("values" if "values" in body else "", given.values):
        row = services.save_override(
            project_id,
            scope,
            given.values,
            actor_of(request),
            given.note,
            given.expires_at,
            version=version,
        )
    empty = Override(
        project_id=project_id, agent=scope.agent, backend=scope.backend, model=scope.model, note=given.note
    )
    return _response(row or empty)


def _override_in(body: dict[str, Any]) -> OverrideRequestSchema:
    """Read `{"values": {…}, "note": …, "expires_at": …}`, or the settings alone."""
    values, note = (body["values"], body.get("note", "")) if "values" in body else (body, "")
    unknown = body.keys() - {"values", "note", "expires_at"} if "values" in body else None
    if unknown:
        name = shorten(min(unknown))
        allowed = "`values`, `note`, `expires_at`"
        raise Problem(422, "unknown_field", f"`{name}` is not a field. Allowed: {allowed}.", path=name)
    if not isinstance(values, dict):
        raise Problem(422, "invalid_type", "`values` must be an object of settings.", path="values")
    if not isinstance(note, str) or len(note) > services.MAX_NOTE_CHARACTERS:
        raise Problem(
            422,
            "invalid_value",
            f"`note` must be text of at most {services.MAX_NOTE_CHARACTERS} characters.",
            path="note",
        )
    expires_at = body.get("expires_at") if "values" in body else None
    try:
        until = None if expires_at is None else datetime.fromisoformat(expires_at)
    except (TypeError, ValueError):
        raise Problem(
            422, "invalid_type", "`expires_at` must be a time in ISO 8601.", path="expires_at"
        ) from None
    return OverrideRequestSchema(values=values, note=note, expires_at=until)


def _delete(request: ApiRequest, scope: Scope, note: str) -> HttpResponse:
    project_id, version = request.principal.project_id, expected_version(request)
    services.delete_override(project_id, _existing(scope), actor_of(request), note, version=version)
    return empty_response()


@router.get(
    "/tool-rules",
    auth=READ,
    response={200: PageSchema[ToolRuleSchema]},
    summary="List tool rules",
)
def list_tool_rules(request: ApiRequest) -> HttpResponse:
    """List the tool rules of the project."""
    rules = ToolOverride.objects.filter(project_id=request.principal.project_id).in_effect()
    return list_response(document_of(rule, ToolRuleSchema) for rule in rules)


@router.get(
    "/tool-rules/{path:pattern}",
    auth=READ,
    response={200: ToolRuleSchema},
    summary="Get a tool rule",
)
def get_tool_rule(request: ApiRequest, pattern: str) -> HttpResponse:
    """Return the tool rule with exactly this pattern."""
    return _get(request, services.tool_scope(pattern))


@router.put(
    "/tool-rules/{path:pattern}",
    auth=ADMIN_WITH_BODY,
    response={200: ToolRuleSchema},
    summary="Update a tool rule",
    openapi_extra=CONDITIONAL_PUT,
)
def put_tool_rule(request: ApiRequest, pattern: str, body: Body[ToolRuleRequestSchema]) -> HttpResponse:
    """Create or replace the tool rule with this pattern."""
    version = expected_version(request)
    with setting_errors("values", body.values):
        row = services.save_override(
            request.principal.project_id,
            services.tool_scope(pattern),
            body.values,
            actor_of(request),
            body.note,
            body.expires_at,
            version=version,
            tool_class=body.tool_class or "",
            ignore_arguments=body.ignore_arguments,
            volatile_result_fields=body.volatile_result_fields,
            exempt=body.exempt,
        )
    return _response(existing(row))


@router.delete(
    "/tool-rules/{path:pattern}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a tool rule",
    openapi_extra=CONDITIONAL,
)
def delete_tool_rule(request: ApiRequest, pattern: str, query: Query[RemovalQuerySchema]) -> HttpResponse:
    """Delete a tool rule."""
    return _delete(request, services.tool_scope(pattern), query.note)


@router.get(
    "/policy",
    auth=READ,
    response={200: EffectivePolicySchema},
    summary="Get the effective policy",
)
def get_policy(request: ApiRequest, query: Query[PolicyQuerySchema]) -> HttpResponse:
    """Return every setting as it applies to a call, each with its source."""
    check_parameters(request, PolicyQuerySchema)
    principal = request.principal
    session = None
    if query.session:
        session = existing(sessions.get_session(principal.project_id, session_name(request, query.session)))
    project = session.project if session else Project.objects.get(pk=principal.project_id)
    policy = policies.effective(project, query.agent, query.backend, query.model, query.tool, session)
    return json_response(
        {
            "agent": query.agent or (session.agent if session else ""),
            "backend": query.backend or (session.backend if session else ""),
            "model": query.model or (session.model if session else ""),
            "tool": query.tool,
            "session": session.external_id if session else None,
            "policy": policy.explain(policy.values),
        }
    )
