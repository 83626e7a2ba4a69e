"""Settings: the stored tiers, the tool rules, and what holds in the end.

The server's tier holds for every project, so a project's key may read it and never change it. A backend or model with
slashes works percent-encoded in the path: the first word is the backend, the rest the model. A backend that has a slash
itself is named in the query, `?backend=…&model=…`, which every one of these routes takes instead of the path.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from ninja import Body, Field, Query, Router, Schema

from detection.api import schemas
from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, actor, principal_of, project_of
from detection.api.problems import Problem
from detection.api.query_parameters import existing, existing_name, new_name, refuse_unknown, target
from detection.api.responses import answer, answer_list, answer_nothing, tier_document, tool_rule_document
from detection.api.typed_bodies import described
from detection.models import PolicyTier, Project, TierScope, ToolRule
from detection.selectors import policies, sessions
from detection.services.errors import NotFound
from detection.services.policies import overrides as services

router = Router(tags=["settings"])
_TIER_BODY = described(schemas.TierIn, required=True)


class Why(Schema):
    """The reason for removing something."""

    note: schemas.Reason = Field("", description="Why; kept in the audit.")


class Place(Schema):
    """A tier, where it is not in the path; neither field: the project's own."""

    backend: schemas.Word = ""
    model: schemas.Word = ""


class PlaceAndWhy(Place, Why):
    """A tier and the reason for removing it."""


def _scope(backend: str, model: str) -> TierScope:
    if model and not backend:
        raise Problem(422, "missing", "A model is named together with its backend.", path="backend")
    if not backend:
        return TierScope.PROJECT
    return TierScope.MODEL if model else TierScope.BACKEND


@router.get(
    "/overrides",
    auth=READ,
    response={200: schemas.Listed[schemas.TierOut]},
    operation_id="listOverrides",
    summary="List the stored tiers",
)
def list_overrides(request: HttpRequest, query: Query[Place]) -> HttpResponse:
    """List the stored tiers that can hold for this project, the server's among them, the widest first."""
    refuse_unknown(request, Place)
    rows = PolicyTier.objects.filter(Q(project_id=project_of(request)) | Q(project=None))
    if query.backend:
        rows = rows.filter(backend=query.backend)
    if query.model:
        rows = rows.filter(model=query.model)
    order = list(TierScope.values)
    tiers = sorted(rows, key=lambda tier: (order.index(tier.scope), tier.backend, tier.model))
    return answer_list(tier_document(tier) for tier in tiers)


@router.put(
    "/overrides",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.TierOut},
    operation_id="putOverride",
    summary="Replace a tier",
    openapi_extra=_TIER_BODY,
)
def put_override(request: HttpRequest, query: Query[Place], body: Body[dict[str, Any]]) -> HttpResponse:
    """Replace the project's own tier, or the one that the query names."""
    refuse_unknown(request, Place)
    return _put(request, query.backend, query.model, body)


@router.delete(
    "/overrides",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteOverride",
    summary="Remove a tier",
)
def delete_override(request: HttpRequest, query: Query[PlaceAndWhy]) -> HttpResponse:
    """Remove the project's own tier, or the one that the query names."""
    refuse_unknown(request, PlaceAndWhy)
    return _delete(request, query.backend, query.model, query.note)


@router.get(
    "/overrides/{backend}/{path:model}",
    auth=READ,
    response={200: schemas.TierOut},
    operation_id="getModelOverride",
    summary="Look at the tier of a backend and model",
)
def get_model_override(request: HttpRequest, backend: str, model: str) -> HttpResponse:
    """Return the settings stored for a backend and model."""
    return _get(request, backend, model)


@router.put(
    "/overrides/{backend}/{path:model}",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.TierOut},
    operation_id="putModelOverride",
    summary="Replace the tier of a backend and model",
    openapi_extra=_TIER_BODY,
)
def put_model_override(
    request: HttpRequest, backend: str, model: str, body: Body[dict[str, Any]]
) -> HttpResponse:
    """Replace the settings for a backend and model; what is left out is inherited."""
    return _put(request, backend, model, body)


@router.delete(
    "/overrides/{backend}/{path:model}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteModelOverride",
    summary="Remove the tier of a backend and model",
)
def delete_model_override(request: HttpRequest, backend: str, model: str, query: Query[Why]) -> HttpResponse:
    """Remove the settings for a backend and model; the tier below holds again."""
    return _delete(request, backend, model, query.note)


@router.get(
    "/overrides/{backend}",
    auth=READ,
    response={200: schemas.TierOut},
    operation_id="getBackendOverride",
    summary="Look at the tier of a backend",
)
def get_backend_override(request: HttpRequest, backend: str) -> HttpResponse:
    """Return the settings stored for a backend."""
    return _get(request, backend, "")


@router.put(
    "/overrides/{backend}",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.TierOut},
    operation_id="putBackendOverride",
    summary="Replace the tier of a backend",
    openapi_extra=_TIER_BODY,
)
def put_backend_override(request: HttpRequest, backend: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """Replace the settings for a backend; what is left out is inherited."""
    return _put(request, backend, "", body)


@router.delete(
    "/overrides/{backend}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteBackendOverride",
    summary="Remove the tier of a backend",
)
def delete_backend_override(request: HttpRequest, backend: str, query: Query[Why]) -> HttpResponse:
    """Remove the settings for a backend; the tier below holds again."""
    return _delete(request, backend, "", query.note)


def _get(request: HttpRequest, backend: str, model: str) -> HttpResponse:
    tier = PolicyTier.objects.filter(
        project_id=project_of(request),
        backend=existing_name(backend),
        model=existing_name(model),
    ).first()
    if tier is None:
        raise NotFound("There is no such tier.")
    return answer(tier_document(tier))


def _put(request: HttpRequest, backend: str, model: str, body: dict[str, Any]) -> HttpResponse:
    scope = _scope(backend, model)
    if backend:
        new_name(backend, "backend", 128)
    if model:
        new_name(model, "model", 200)
    given = _tier_in(body)
    tier = services.save_tier(
        project_of(request), scope, backend, model, given.values, actor(request), given.note
    )
    empty = PolicyTier(scope=scope, backend=backend, model=model, values={}, note=given.note)
    return answer(tier_document(tier or empty))


def _tier_in(body: dict[str, Any]) -> schemas.TierIn:
    """Take `{"values": {…}, "note": …}`, or the settings alone."""
    values, note = (body["values"], body.get("note", "")) if "values" in body else (body, "")
    unknown = body.keys() - {"values", "note"} if "values" in body else None
    if unknown:
        raise Problem(422, "unknown_field", "There is no such field.", path=min(unknown))
    if not isinstance(values, dict):
        raise Problem(422, "invalid_type", "Must be an object of settings.", path="values")
    if not isinstance(note, str) or len(note) > services.MAX_NOTE_CHARACTERS:
        raise Problem(422, "invalid_value", "Must be text of at most 300 characters.", path="note")
    return schemas.TierIn(values=values, note=note)


def _delete(request: HttpRequest, backend: str, model: str, note: str) -> HttpResponse:
    scope = _scope(backend, model)
    services.delete_tier(
        project_of(request),
        scope,
        existing_name(backend),
        existing_name(model),
        actor(request),
        note,
    )
    return answer_nothing()


@router.get(
    "/tool-rules",
    auth=READ,
    response={200: schemas.Listed[schemas.ToolRuleOut]},
    operation_id="listToolRules",
    summary="List tool rules",
)
def list_tool_rules(request: HttpRequest) -> HttpResponse:
    """List the project's tool rules."""
    rules = ToolRule.objects.filter(project_id=project_of(request))
    return answer_list(tool_rule_document(rule) for rule in rules)


@router.get(
    "/tool-rules/{path:pattern}",
    auth=READ,
    response={200: schemas.ToolRuleOut},
    operation_id="getToolRule",
    summary="Look at a tool rule",
)
def get_tool_rule(request: HttpRequest, pattern: str) -> HttpResponse:
    """Return the rule with exactly this pattern."""
    rule = ToolRule.objects.filter(project_id=project_of(request), pattern=existing_name(pattern)).first()
    if rule is None:
        raise NotFound("There is no such tool rule.")
    return answer(tool_rule_document(rule))


@router.put(
    "/tool-rules/{path:pattern}",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.ToolRuleOut},
    operation_id="putToolRule",
    summary="Replace a tool rule",
)
def put_tool_rule(request: HttpRequest, pattern: str, body: Body[schemas.ToolRuleIn]) -> HttpResponse:
    """Replace the rule for the tools that a pattern matches."""
    rule = services.save_tool_rule(
        project_of(request),
        new_name(pattern, "pattern", 128),
        actor=actor(request),
        tool_class=body.tool_class or "",
        ignore_arguments=list(body.ignore_arguments),
        volatile_result_fields=list(body.volatile_result_fields),
        values=body.values,
        exempt=body.exempt,
        note=body.note,
    )
    return answer(tool_rule_document(rule))


@router.delete(
    "/tool-rules/{path:pattern}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteToolRule",
    summary="Remove a tool rule",
)
def delete_tool_rule(request: HttpRequest, pattern: str, query: Query[Why]) -> HttpResponse:
    """Remove a rule."""
    services.delete_tool_rule(*target(request, pattern), query.note)
    return answer_nothing()


@router.get(
    "/policy",
    auth=READ,
    response={200: schemas.PolicyOut},
    operation_id="getPolicy",
    summary="See what holds",
)
def get_policy(request: HttpRequest, query: Query[schemas.PolicyQuery]) -> HttpResponse:
    """Return every setting as it would hold for a call, each with the tier that it comes from."""
    refuse_unknown(request, schemas.PolicyQuery)
    principal = principal_of(request)
    session = None
    if query.session:
        session = existing(sessions.get_session(principal.project_id, query.session), "session")
    project = session.project if session else Project.objects.get(pk=principal.project_id)
    policy = policies.effective(project, query.backend, query.model, query.tool, session)
    return answer(
        {
            "backend": query.backend or (session.backend if session else ""),
            "model": query.model or (session.model if session else ""),
            "tool": query.tool,
            "session": session.external_id if session else None,
            "policy": policy.explain(policy.values),
        }
    )
