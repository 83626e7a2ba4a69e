"""Settings: the stored tiers, the tool rules, and what holds in the end.

The server's tier holds for every project, so a project's key may read it and never change it. A backend or model with
slashes works percent-encoded in the path: the first word is the backend, the rest the model. A backend that has a slash
itself is named in the query, `?backend=…&model=…`, which every one of these routes takes instead of the path.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters, existing, existing_name, new_name, target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import (
    empty_response,
    json_response,
    list_response,
    tier_document,
    tool_rule_document,
)
from detection.api.schemas.common import PageSchema
from detection.api.schemas.settings import (
    EffectivePolicySchema,
    OverrideQuerySchema,
    OverrideRemovalQuerySchema,
    OverrideRequestSchema,
    OverrideSchema,
    PolicyQuerySchema,
    RemovalQuerySchema,
    ToolRuleRequestSchema,
    ToolRuleSchema,
)
from detection.api.typed_bodies import described
from detection.models import PolicyTier, Project, TierScope, ToolRule
from detection.selectors import policies, sessions
from detection.services.errors import NotFound
from detection.services.policies import overrides as services

router = Router(tags=["settings"])
_TIER_BODY = described(OverrideRequestSchema, required=True)


def _scope(backend: str, model: str) -> TierScope:
    if model and not backend:
        raise Problem(422, "missing", "A model is named together with its backend.", path="backend")
    if not backend:
        return TierScope.PROJECT
    return TierScope.MODEL if model else TierScope.BACKEND


@router.get(
    "/overrides",
    auth=READ,
    response={200: PageSchema[OverrideSchema]},
    operation_id="listOverrides",
    summary="List overrides",
)
def list_overrides(request: ApiRequest, query: Query[OverrideQuerySchema]) -> HttpResponse:
    """List the overrides that can apply to this project, including those of the server, widest scope first."""
    check_parameters(request, OverrideQuerySchema)
    rows = PolicyTier.objects.filter(Q(project_id=request.principal.project_id) | Q(project=None))
    if query.backend:
        rows = rows.filter(backend=query.backend)
    if query.model:
        rows = rows.filter(model=query.model)
    order = list(TierScope.values)
    tiers = sorted(rows, key=lambda tier: (order.index(tier.scope), tier.backend, tier.model))
    return list_response(tier_document(tier) for tier in tiers)


@router.put(
    "/overrides",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    operation_id="putOverride",
    summary="Update an override",
    openapi_extra=_TIER_BODY,
)
def put_override(
    request: ApiRequest, query: Query[OverrideQuerySchema], body: Body[dict[str, Any]]
) -> HttpResponse:
    """Replace the override of the project, or of the backend and model in the query."""
    check_parameters(request, OverrideQuerySchema)
    return _put(request, query.backend, query.model, body)


@router.delete(
    "/overrides",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteOverride",
    summary="Delete an override",
)
def delete_override(request: ApiRequest, query: Query[OverrideRemovalQuerySchema]) -> HttpResponse:
    """Delete the override of the project, or of the backend and model in the query."""
    check_parameters(request, OverrideRemovalQuerySchema)
    return _delete(request, query.backend, query.model, query.note)


@router.get(
    "/overrides/{backend}/{path:model}",
    auth=READ,
    response={200: OverrideSchema},
    operation_id="getModelOverride",
    summary="Get the override of a model",
)
def get_model_override(request: ApiRequest, backend: str, model: str) -> HttpResponse:
    """Return the override of a backend's model."""
    return _get(request, backend, model)


@router.put(
    "/overrides/{backend}/{path:model}",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    operation_id="putModelOverride",
    summary="Update the override of a model",
    openapi_extra=_TIER_BODY,
)
def put_model_override(
    request: ApiRequest, backend: str, model: str, body: Body[dict[str, Any]]
) -> HttpResponse:
    """Replace the override of a backend's model. Missing settings are inherited."""
    return _put(request, backend, model, body)


@router.delete(
    "/overrides/{backend}/{path:model}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteModelOverride",
    summary="Delete the override of a model",
)
def delete_model_override(
    request: ApiRequest, backend: str, model: str, query: Query[RemovalQuerySchema]
) -> HttpResponse:
    """Delete the override of a backend's model."""
    return _delete(request, backend, model, query.note)


@router.get(
    "/overrides/{backend}",
    auth=READ,
    response={200: OverrideSchema},
    operation_id="getBackendOverride",
    summary="Get the override of a backend",
)
def get_backend_override(request: ApiRequest, backend: str) -> HttpResponse:
    """Return the override of a backend."""
    return _get(request, backend, "")


@router.put(
    "/overrides/{backend}",
    auth=ADMIN_WITH_BODY,
    response={200: OverrideSchema},
    operation_id="putBackendOverride",
    summary="Update the override of a backend",
    openapi_extra=_TIER_BODY,
)
def put_backend_override(request: ApiRequest, backend: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """Replace the override of a backend. Missing settings are inherited."""
    return _put(request, backend, "", body)


@router.delete(
    "/overrides/{backend}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteBackendOverride",
    summary="Delete the override of a backend",
)
def delete_backend_override(
    request: ApiRequest, backend: str, query: Query[RemovalQuerySchema]
) -> HttpResponse:
    """Delete the override of a backend."""
    return _delete(request, backend, "", query.note)


def _get(request: ApiRequest, backend: str, model: str) -> HttpResponse:
    tier = PolicyTier.objects.filter(
        project_id=request.principal.project_id,
        backend=existing_name(backend),
        model=existing_name(model),
    ).first()
    if tier is None:
        raise NotFound("There is no such tier.")
    return json_response(tier_document(tier))


def _put(request: ApiRequest, backend: str, model: str, body: dict[str, Any]) -> HttpResponse:
    scope = _scope(backend, model)
    if backend:
        new_name(backend, "backend", 128)
    if model:
        new_name(model, "model", 200)
    given = _tier_in(body)
    tier = services.save_tier(
        request.principal.project_id, scope, backend, model, given.values, actor_of(request), given.note
    )
    empty = PolicyTier(scope=scope, backend=backend, model=model, values={}, note=given.note)
    return json_response(tier_document(tier or empty))


def _tier_in(body: dict[str, Any]) -> OverrideRequestSchema:
    """Take `{"values": {…}, "note": …}`, or the settings alone."""
    values, note = (body["values"], body.get("note", "")) if "values" in body else (body, "")
    unknown = body.keys() - {"values", "note"} if "values" in body else None
    if unknown:
        raise Problem(422, "unknown_field", "There is no such field.", path=min(unknown))
    if not isinstance(values, dict):
        raise Problem(422, "invalid_type", "Must be an object of settings.", path="values")
    if not isinstance(note, str) or len(note) > services.MAX_NOTE_CHARACTERS:
        raise Problem(422, "invalid_value", "Must be text of at most 300 characters.", path="note")
    return OverrideRequestSchema(values=values, note=note)


def _delete(request: ApiRequest, backend: str, model: str, note: str) -> HttpResponse:
    scope = _scope(backend, model)
    services.delete_tier(
        request.principal.project_id,
        scope,
        existing_name(backend),
        existing_name(model),
        actor_of(request),
        note,
    )
    return empty_response()


@router.get(
    "/tool-rules",
    auth=READ,
    response={200: PageSchema[ToolRuleSchema]},
    operation_id="listToolRules",
    summary="List tool rules",
)
def list_tool_rules(request: ApiRequest) -> HttpResponse:
    """List the tool rules of the project."""
    rules = ToolRule.objects.filter(project_id=request.principal.project_id)
    return list_response(tool_rule_document(rule) for rule in rules)


@router.get(
    "/tool-rules/{path:pattern}",
    auth=READ,
    response={200: ToolRuleSchema},
    operation_id="getToolRule",
    summary="Get a tool rule",
)
def get_tool_rule(request: ApiRequest, pattern: str) -> HttpResponse:
    """Return the tool rule with exactly this pattern."""
    rule = ToolRule.objects.filter(
        project_id=request.principal.project_id, pattern=existing_name(pattern)
    ).first()
    if rule is None:
        raise NotFound("There is no such tool rule.")
    return json_response(tool_rule_document(rule))


@router.put(
    "/tool-rules/{path:pattern}",
    auth=ADMIN_WITH_BODY,
    response={200: ToolRuleSchema},
    operation_id="putToolRule",
    summary="Update a tool rule",
)
def put_tool_rule(request: ApiRequest, pattern: str, body: Body[ToolRuleRequestSchema]) -> HttpResponse:
    """Create or replace the tool rule with this pattern."""
    rule = services.save_tool_rule(
        request.principal.project_id,
        new_name(pattern, "pattern", 128),
        actor=actor_of(request),
        tool_class=body.tool_class or "",
        ignore_arguments=list(body.ignore_arguments),
        volatile_result_fields=list(body.volatile_result_fields),
        values=body.values,
        exempt=body.exempt,
        note=body.note,
    )
    return json_response(tool_rule_document(rule))


@router.delete(
    "/tool-rules/{path:pattern}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteToolRule",
    summary="Delete a tool rule",
)
def delete_tool_rule(request: ApiRequest, pattern: str, query: Query[RemovalQuerySchema]) -> HttpResponse:
    """Delete a tool rule."""
    services.delete_tool_rule(*target(request, pattern), query.note)
    return empty_response()


@router.get(
    "/policy",
    auth=READ,
    response={200: EffectivePolicySchema},
    operation_id="getPolicy",
    summary="Get the effective policy",
)
def get_policy(request: ApiRequest, query: Query[PolicyQuerySchema]) -> HttpResponse:
    """Return every setting as it applies to a call, each with its source."""
    check_parameters(request, PolicyQuerySchema)
    principal = request.principal
    session = None
    if query.session:
        session = existing(sessions.get_session(principal.project_id, query.session))
    project = session.project if session else Project.objects.get(pk=principal.project_id)
    policy = policies.effective(project, query.backend, query.model, query.tool, session)
    return json_response(
        {
            "backend": query.backend or (session.backend if session else ""),
            "model": query.model or (session.model if session else ""),
            "tool": query.tool,
            "session": session.external_id if session else None,
            "policy": policy.explain(policy.values),
        }
    )
