"""Bodies of routes that change something: strict JSON, checked against the schema."""

from __future__ import annotations

from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from ninja import Schema
from ninja.errors import ValidationError
from ninja.parser import Parser
from pydantic import ValidationError as PydanticError

from detection.api import request_bodies
from detection.api.problems import Problem, of_json
from detection.strict_json import Cleaner, JsonProblem, loads

Body = TypeVar("Body", bound=Schema)


class StrictParser(Parser):
    """Ninja's parser with LoopGuard's JSON parser, so that every route uses the same one."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the document, or raise a `Problem`."""
        try:
            return strict_document(request.body)
        except JsonProblem as problem:
            raise of_json(problem) from problem
        except RequestDataTooBig as error:
            raise request_bodies.too_large() from error


def strict_document(body: bytes) -> Any:
    """Read the body of a route that changes settings, where whatever would mark an event as altered is an error.

    Raises
    ------
    Problem
        If the body is not plain JSON within the limits.
    """
    document = loads(body)
    cleaner = Cleaner()
    cleaned = cleaner.value(document)
    wrong = cleaner.marks.keys() - {"not_json"}
    if wrong:
        mark = min(wrong)
        raise Problem(
            422, mark, f"The body contains something that cannot be stored: {mark.replace('_', ' ')}."
        )
    return cleaned


def described(schema: type[Schema], *, required: bool = False) -> dict[str, object]:
    """Return the `openapi_extra` of a body that the route reads itself."""
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    return {"requestBody": {"required": required, "content": {request_bodies.JSON: {"schema": reference}}}}


def optional_body(request: HttpRequest, schema: type[Body]) -> Body:
    """Return the optional body of a route; without one, the defaults.

    Raises
    ------
    Problem, ValidationError
        If there is a body and it is not valid.
    """
    has_body = bool(request.META.get("CONTENT_LENGTH", "0") not in ("", "0")) or bool(
        request.META.get("HTTP_TRANSFER_ENCODING")
    )
    if not has_body:
        return schema()
    request_bodies.media_type(request)
    body = request_bodies.read_body(request)
    return _checked(body, schema) if body else schema()


def required_body(request: HttpRequest, schema: type[Body]) -> Body:
    """Return the body of a route that needs no key, and so reads it itself.

    Raises
    ------
    Problem, ValidationError
        It is not valid.
    """
    request_bodies.media_type(request)
    return _checked(request_bodies.read_body(request), schema)


def _checked(body: bytes, schema: type[Body]) -> Body:
    try:
        return schema.model_validate(strict_document(body))
    except PydanticError as error:
        items = [{**item, "loc": ("body", "body", *item["loc"])} for item in error.errors(include_url=False)]
        raise ValidationError(items) from error
