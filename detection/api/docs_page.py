"""The docs page: the OpenAPI document as plain HTML, without scripts or external resources."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import slugify

from detection.api.error_codes import ERROR_CODES

METHODS = ("get", "post", "put", "patch", "delete")
MAX_DEPTH = 2
"""Objects within objects that are listed with their fields."""


def render_docs(request: HttpRequest, document: dict[str, Any]) -> HttpResponse:
    """Return the page of an OpenAPI document."""
    by_tag: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = _operation(path, method, operations[method], document)
                by_tag.setdefault(operation["tag"], []).append(operation)
    info = document["info"] | {"description": _prose(document["info"]["description"])}
    context = {"info": info, "groups": by_tag, "codes": _codes()}
    return render(request, "api/docs.html", context)


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {})
    success: dict[str, Any] = next(
        (item for status, item in operation["responses"].items() if int(status) < 300), {}
    )
    content: dict[str, Any] = next(iter(success.get("content", {}).values()), {})
    return {
        "anchor": slugify(operation["operationId"]),
        "tag": (operation.get("tags") or ["other"])[0],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "description": _prose(operation.get("description", "")),
        "parameters": [
            one | {"description": _prose(one.get("description", ""))}
            for one in operation.get("parameters", [])
        ],
        "bodies": [
            {
                "type": media_type,
                "fields": _nested_fields(item["schema"], document),
                "example": _example(item["schema"], document),
            }
            for media_type, item in body.items()
        ],
        "response": _nested_fields(content.get("schema", {}), document),
    }


def _prose(text: str) -> SafeString:
    """Return a description with what stands in backticks as code."""
    parts = text.split("`")
    words = (format_html("<code>{}</code>" if place % 2 else "{}", part) for place, part in enumerate(parts))
    return format_html_join("", "{}", ((word,) for word in words))


def _example(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """Return the example of a body, of the first alternative that has one, as JSON; empty without one."""
    schema = _resolve(schema, document)
    found = schema.get("examples", [])
    if found:
        return json.dumps(found[0], indent=2)
    return next(filter(None, (_example(part, document) for part in schema.get("anyOf", []))), "")


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of an object, or of all its alternatives in order."""
    schema = _resolve(schema, document)
    if "anyOf" in schema:
        return [field for part in schema["anyOf"] for field in _fields(part, document)]
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "type": _type(field),
            "required": name in required,
            "description": _prose(field.get("description", "")),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _nested_fields(
    schema: dict[str, Any], document: dict[str, Any], prefix: str = "", depth: int = MAX_DEPTH
) -> list[dict[str, Any]]:
    """Return the fields of an object, each followed by those of the objects in it: `verdicts[].approval.wait_url`."""
    schema = _resolve(schema, document)
    if "anyOf" in schema:
        return [field for part in schema["anyOf"] for field in _nested_fields(part, document, prefix, depth)]
    found = []
    for field in _fields(schema, document):
        inner, name, dots = schema["properties"][field["name"]], f"{prefix}{field['name']}", "."
        found.append(field | {"name": name})
        if inner.get("type") == "array":
            inner, dots = inner.get("items", {}), "[]."
        inner = next((part for part in inner.get("anyOf", []) if "$ref" in part), inner)
        if depth and "$ref" in inner:
            found += _nested_fields(inner, document, f"{name}{dots}", depth - 1)
    return found


def _resolve(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if not reference:
        return schema
    found: dict[str, Any] = document["components"]["schemas"].get(reference.rsplit("/", 1)[-1], {})
    return found


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any")


def _codes() -> list[tuple[str, str, SafeString]]:
    return [(code, status, _prose(text)) for code, (status, text) in sorted(ERROR_CODES.items())]
