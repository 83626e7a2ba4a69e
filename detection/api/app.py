"""The API: routes, parser, error handling and OpenAPI document."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, Schema
from ninja.openapi.docs import DocsBase
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from detection import __version__
from detection.api import otlp_responses, problems
from detection.api.docs_page import render_docs
from detection.api.routes import (
    agent_messages,
    agents,
    alerting,
    approvals,
    audit,
    backends,
    containments,
    erasures,
    exceptions,
    gateway_traffic,
    hooks,
    imports,
    incidents,
    install_codes,
    integrations,
    loops,
    message_templates,
    policies,
    prices,
    projects,
    rates,
    saved_views,
    search,
    sessions,
    statistics,
    suggestions,
    telemetry,
    what_if,
)
from detection.api.schemas.agents import EventBatchSchema, EventSchema, GuardRequestSchema
from detection.api.schemas.common import ProblemSchema
from detection.api.schemas.install_codes import InstallCodeSchema
from detection.api.schemas.loops import ConfirmRequestSchema, NoteRequestSchema
from detection.api.schemas.sessions import StopRequestSchema
from detection.api.schemas.settings import OverrideRequestSchema
from detection.api.typed_bodies import StrictParser

DESCRIPTION = """
Agents send events, or ask the guard before a call runs. People and programs read sessions and incidents and change
settings. Every request needs a key of the project: `Authorization: Bearer lg_…`; only the exchange of an install code
does not. Errors are problem documents with a stable `code`. Times are ISO 8601 with an offset, durations are in
seconds, and ids are opaque.
"""
# Bodies that routes read themselves, so Ninja does not add their schemas.
_MORE_SCHEMAS: tuple[type[Schema], ...] = (
    ConfirmRequestSchema,
    EventSchema,
    EventBatchSchema,
    GuardRequestSchema,
    StopRequestSchema,
    InstallCodeSchema,
    NoteRequestSchema,
    OverrideRequestSchema,
    ProblemSchema,
)
_ERRORS = {
    "400": "The body is not JSON or is incomplete.",
    "401": "The key is missing, unknown, revoked or expired.",
    "403": "The key does not have the required scope.",
    "404": "Not found in this project.",
    "405": "The path does not support this method.",
    "409": "The current state does not allow this.",
    "412": "The object has changed since the version in `If-Match`, or exists despite `If-None-Match`.",
    "413": "The body, the batch or an event is too large.",
    "415": "The content type, character set or encoding is not supported.",
    "422": "A field or parameter is missing, unknown or invalid.",
    "429": "Too many requests. Retry after the time in `Retry-After`.",
    "503": "The database is unavailable or its disk is full. Retry after the time in `Retry-After`.",
}
_PATH_PARAMETERS = {
    "agent": "Agent, percent-encoded.",
    "approval_id": "Id of the approval.",
    "backend": "LLM backend, percent-encoded.",
    "backend_id": "Id of the backend.",
    "containment_id": "Id of the containment.",
    "destination_id": "Id of the destination.",
    "host": "Name of the coding agent.",
    "import_id": "Id of the import.",
    "erasure_id": "Id of the erasure.",
    "what_if_id": "Id of the what-if.",
    "incident_id": "Id of the incident.",
    "model": "Model, percent-encoded.",
    "notification_id": "Id of the notification.",
    "pattern": "Glob of tool names, percent-encoded.",
    "loop_id": "Id of the loop.",
    "group": "Id of the group, as the list of groups has it.",
    "answer_id": "Id of the answer, as the decision about a group has it.",
    "key_id": "Id of the key.",
    "message_id": "Id of the message.",
    "price_id": "Id of the price.",
    "remembered_id": "Id of the remembered decision.",
    "route_id": "Id of the route.",
    "rung": "Rung of the escalation ladder.",
    "session": "Your name for the session, percent-encoded.",
    "silence_id": "Id of the silence.",
    "suggestion_id": "Id of the suggestion.",
    "token_id": "Readable part of the token.",
    "view_id": "Id of the view.",
}


class _DocsPage(DocsBase):
    """Our own docs page: the content security policy blocks the scripts of the bundled ones."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **_: Any) -> HttpResponse:
        """Return the page."""
        return render_docs(request, api.get_openapi_schema())


class LoopGuardAPI(NinjaAPI):
    """Ninja's API with the schemas, errors and path parameters that Ninja does not describe by itself."""

    _openapi: OpenAPISchema | None = None

    def create_temporal_response(self, request: HttpRequest) -> HttpResponse:
        """Return nothing: Ninja's own response would be made for every request, and each route returns its own."""
        return None  # type: ignore[return-value]

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the name of a route's function in camel case, such as `listSessions`."""
        first, *others = operation.view_func.__name__.split("_")
        return first + "".join(map(str.capitalize, others))

    def get_openapi_schema(self, **_: Any) -> OpenAPISchema:
        """Return the OpenAPI document; built once per process."""
        if self._openapi is None:
            document = super().get_openapi_schema(path_prefix="/api/v1/")
            _complete(document)
            self._openapi = document
        return self._openapi


def _complete(document: OpenAPISchema) -> None:
    for schema in _MORE_SCHEMAS:
        definition = schema.model_json_schema(ref_template="#/components/schemas/{model}")
        document.add_schema_definitions(definition.pop("$defs", {}))
        document.add_schema_definitions({schema.__name__: definition})
    problem = {"schema": {"$ref": "#/components/schemas/ProblemSchema"}}
    errors: dict[str, Any] = {
        status: {"description": description, "content": {problems.CONTENT_TYPE: problem}}
        for status, description in _ERRORS.items()
    }
    for status in ("429", "503"):
        errors[status]["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}
        }
    of_exporters = {
        status: error | {"content": otlp_responses.DESCRIBED_ERROR}
        for status, error in errors.items()
        if otlp_responses.http_status(int(status)) == int(status)
    }
    document["components"]["responses"] = {f"Error{status}": error for status, error in errors.items()} | {
        f"OtlpError{status}": error for status, error in of_exporters.items()
    }
    for path, operations in document["paths"].items():
        name, known = ("OtlpError", of_exporters) if otlp_responses.is_otlp(path) else ("Error", errors)
        references = {status: {"$ref": f"#/components/responses/{name}{status}"} for status in known}
        for operation in operations.values():
            operation["responses"] |= references
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["description"] = _PATH_PARAMETERS[parameter["name"]]


api = LoopGuardAPI(
    title="LoopGuard",
    version=__version__,
    description=DESCRIPTION.strip(),
    urls_namespace="api",
    parser=StrictParser(),
    docs=_DocsPage(),
)
problems.install(api)
api.add_router("", agents.router)
api.add_router("", telemetry.router)
api.add_router("", hooks.router)
api.add_router("", sessions.router)
api.add_router("", search.router)
api.add_router("", incidents.router)
api.add_router("", loops.router)
api.add_router("", policies.router)
api.add_router("", message_templates.router)
api.add_router("", approvals.router)
api.add_router("", containments.router)
api.add_router("", agent_messages.router)
api.add_router("", alerting.router)
api.add_router("", backends.router)
api.add_router("", prices.router)
api.add_router("", projects.router)
api.add_router("", gateway_traffic.router)
api.add_router("", statistics.router)
api.add_router("", rates.router)
api.add_router("", integrations.router)
api.add_router("", install_codes.router)
api.add_router("", imports.router)
api.add_router("", erasures.router)
api.add_router("", what_if.router)
api.add_router("", exceptions.router)
api.add_router("", suggestions.router)
api.add_router("", saved_views.router)
api.add_router("", audit.router)
