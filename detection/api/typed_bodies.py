"""Bodies of the routes that change settings and states: strict JSON, then the schema's word."""

from __future__ import annotations

from typing import Any, TypeVar

from django.http import HttpRequest
from ninja import Schema
from ninja.errors import ValidationError
from ninja.parser import Parser
from pydantic import ValidationError as PydanticError

from detection.api import event_parsing, request_bodies

Body = TypeVar("Body", bound=Schema)


class StrictParser(Parser):
    """Ninja's parser with ours inside: one JSON parser for every route."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the document; problems are raised."""
        return event_parsing.strict_document(request.body)


def described(schema: type[Schema], *, required: bool = False) -> dict[str, Any]:
    """Describe a body that the route reads itself, for `openapi_extra`."""
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    return {"requestBody": {"required": required, "content": {request_bodies.JSON: {"schema": reference}}}}


def optional_body(request: HttpRequest, schema: type[Body]) -> Body:
    """Read the body of a route that works without one.

    Raises
    ------
    Problem, ValidationError
        For a body that is there and wrong.
    """
    is_there = bool(request.META.get("CONTENT_LENGTH", "0") not in ("", "0")) or bool(
        request.META.get("HTTP_TRANSFER_ENCODING")
    )
    if not is_there:
        return schema()
    request_bodies.media_type(request)
    body = request_bodies.read_body(request)
    if not body:
        return schema()
    try:
        return schema.model_validate(event_parsing.strict_document(body))
    except PydanticError as error:
        items = [{**item, "loc": ("body", "body", *item["loc"])} for item in error.errors(include_url=False)]
        raise ValidationError(items) from error
