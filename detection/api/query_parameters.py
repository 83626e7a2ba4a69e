"""Checks of query strings, headers and names in paths, before any query runs."""

from __future__ import annotations

from typing import Final, TypeVar

from django.http.request import HttpHeaders
from ninja import Schema

from detection.api.problems import Problem
from detection.api.requests import ApiRequest, actor_of
from detection.engine import wire_shapes
from detection.integrations.labels import LabelError, Labels, labels_of_headers
from detection.services.audit import Actor
from detection.services.errors import NotFound
from detection.services.sessions.session_names import stored_session_name
from detection.strict_json import shorten

Row = TypeVar("Row")
RENDER_PARAMETER: Final = {
    "in": "query",
    "name": "render",
    "required": False,
    "schema": {"type": "string", "enum": [*wire_shapes.SHAPES]},
    "description": "Adds `rendered`, the message in this wire shape.",
}
"""OpenAPI description of `rendered_shape`."""


def check_parameters(request: ApiRequest, schema: type[Schema]) -> None:
    """Reject query parameters that the schema does not have, so that a mistyped filter is not ignored."""
    allowed = [field.alias or name for name, field in schema.model_fields.items()]
    check_parameter_names(request, allowed)


def check_parameter_names(request: ApiRequest, allowed: list[str]) -> None:
    """Reject query parameters whose names are not listed."""
    unknown = request.GET.keys() - set(allowed)
    if unknown:
        name = shorten(min(unknown))
        known = ", ".join(f"`{one}`" for one in allowed)
        raise Problem(
            422,
            "unknown_parameter",
            f"`{name}` is not a parameter of this route. Allowed: {known}.",
            path=name,
        )


def rendered_shape(request: ApiRequest) -> wire_shapes.Shape | None:
    """Return the wire shape in the query, if there is one."""
    name = request.GET.get("render", "")
    shape = wire_shapes.shape_named(name)
    if name and shape is None:
        allowed = ", ".join(wire_shapes.SHAPES)
        raise Problem(422, "invalid_value", f"`render` must be one of {allowed}.", path="render")
    return shape


def labels_of_request(request: ApiRequest) -> Labels:
    """Return the tags and metadata in the headers of a request of an agent.

    Raises
    ------
    Problem
        422 for headers that are not valid.
    """
    try:
        # From META: Django's `headers` are made of all headers of a request, which costs more than parsing the call.
        return labels_of_headers(lambda name: request.META.get(HttpHeaders.to_wsgi_name(name), ""))
    except LabelError as error:
        raise Problem(422, error.code, error.detail, path=error.path) from None


def existing_name(name: str) -> str:
    """Return a name from a path; a name that cannot exist is not found."""
    if "\x00" in name or len(name) > 1000:
        raise NotFound
    return name


def existing(row: Row | None) -> Row:
    """Return the row, or raise `NotFound`."""
    if row is None:
        raise NotFound
    return row


def session_name(request: ApiRequest, name: str) -> str:
    """Return the name of a session as it is stored; a name that cannot exist is not found."""
    principal = request.principal
    return stored_session_name(principal.project_id, principal.redactor, existing_name(name))


def target(request: ApiRequest, name: str) -> tuple[int, str, Actor]:
    """Return the first arguments of a service that changes one object: project id, name of the object, actor."""
    return request.principal.project_id, existing_name(name), actor_of(request)
