"""The API: its routes, its parser, its problems and its description."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, Schema
from ninja.openapi.docs import DocsBase
from ninja.openapi.schema import OpenAPISchema

from detection.api import problems, schemas
from detection.api.docs_page import render_docs
from detection.api.routes import (
    agents,
    alerting,
    approvals,
    audit,
    incidents,
    message_templates,
    policies,
    sessions,
    statistics,
)
from detection.api.typed_bodies import StrictParser

DESCRIPTION = """
Agents send events, or ask the guard before a call runs; people and programs read sessions and incidents and set the
limits. Every request carries a project's key: `Authorization: Bearer lg_…`. Refusals are problem documents with a stable
`code`. Times are ISO 8601 with their offset, durations are seconds, ids are opaque.
"""
# Described here, read by hand: the routes that agents wait for do without a second parser.
_READ_BY_HAND: tuple[type[Schema], ...] = (
    schemas.EventIn,
    schemas.EventsIn,
    schemas.GuardIn,
    schemas.StopIn,
    schemas.NoteIn,
    schemas.TierIn,
    schemas.Problem,
)
_REFUSALS = {
    "400": "Not JSON, or a body that ended early.",
    "401": "No key, or one that is unknown, revoked or expired.",
    "403": "The key lacks the scope.",
    "404": "There is no such thing in this project.",
    "405": "This path does not take that method.",
    "409": "The thing is not in a state that allows it.",
    "413": "The body, a batch or an event is too large.",
    "415": "Another content type or encoding than the ones that are taken.",
    "422": "A field is missing, unknown, or has a value that is not allowed.",
    "429": "Too many requests; Retry-After says when to come back.",
    "503": "The database cannot answer right now, or its disk is full; Retry-After says when to come back.",
}


class _OwnDocs(DocsBase):
    """A page of our own, since the strict content security policy leaves no room for a borrowed one."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **_: Any) -> HttpResponse:
        """Return the page."""
        return render_docs(request, api.get_openapi_schema())


class LoopGuardAPI(NinjaAPI):
    """Ninja's API with problem documents described for every operation."""

    _described: OpenAPISchema | None = None

    def get_openapi_schema(self, **_: Any) -> OpenAPISchema:
        """Return the description; made once."""
        if self._described is None:
            described = super().get_openapi_schema(path_prefix="/api/v1/")
            _complete(described)
            self._described = described
        return self._described


def _complete(described: OpenAPISchema) -> None:
    for schema in _READ_BY_HAND:
        made = schema.model_json_schema(ref_template="#/components/schemas/{model}")
        described.add_schema_definitions(made.pop("$defs", {}))
        described.add_schema_definitions({schema.__name__: made})
    refusal = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for operations in described["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            for status, description in _REFUSALS.items():
                responses[status] = {"description": description, "content": {problems.CONTENT_TYPE: refusal}}
            for status in ("429", "503"):
                responses[status]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}


api = LoopGuardAPI(
    title="LoopGuard",
    version="1",
    description=DESCRIPTION.strip(),
    urls_namespace="api",
    parser=StrictParser(),
    docs=_OwnDocs(),
)
problems.install(api)
api.add_router("", agents.router)
api.add_router("", sessions.router)
api.add_router("", incidents.router)
api.add_router("", policies.router)
api.add_router("", message_templates.router)
api.add_router("", approvals.router)
api.add_router("", alerting.router)
api.add_router("", statistics.router)
api.add_router("", audit.router)
