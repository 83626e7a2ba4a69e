"""The docs page: the OpenAPI as plain HTML of our own, without script or anything from elsewhere."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.text import slugify

METHODS = ("get", "post", "put", "patch", "delete")


def render_docs(request: HttpRequest, described: dict[str, Any]) -> HttpResponse:
    """Return the page for a description."""
    by_tag: dict[str, list[dict[str, Any]]] = {}
    for path, operations in described["paths"].items():
        for method in METHODS:
            if method in operations:
                shown = _operation(path, method, operations[method], described)
                by_tag.setdefault(shown["tag"], []).append(shown)
    context = {"info": described["info"], "groups": by_tag, "problems": _problems(described)}
    return render(request, "api/docs.html", context)


def _operation(
    path: str, method: str, operation: dict[str, Any], described: dict[str, Any]
) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {})
    answered = next(
        (item for status, item in operation["responses"].items() if int(status) < 300), {"description": ""}
    )
    return {
        "anchor": slugify(operation["operationId"]),
        "tag": (operation.get("tags") or ["other"])[0],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": operation.get("parameters", []),
        "bodies": [
            {"type": kind, "fields": _fields(item["schema"], described)} for kind, item in body.items()
        ],
        "answer": _fields(_first_schema(answered), described),
        "statuses": sorted(str(status) for status in operation["responses"]),
    }


def _first_schema(response: dict[str, Any]) -> dict[str, Any]:
    content = response.get("content", {})
    for described in content.values():
        schema: dict[str, Any] = described["schema"]
        return schema
    return {}


def _fields(schema: dict[str, Any], described: dict[str, Any]) -> list[dict[str, Any]]:
    """List the fields of an object, or of the alternatives in their order."""
    schema = _resolved(schema, described)
    if "anyOf" in schema:
        return [field for part in schema["anyOf"] for field in _fields(part, described)]
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "type": _type(field, described),
            "required": name in required,
            "description": field.get("description", ""),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _resolved(schema: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if not reference:
        return schema
    found: dict[str, Any] = described["components"]["schemas"].get(reference.rsplit("/", 1)[-1], {})
    return found


def _type(schema: dict[str, Any], described: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(part, described) for part in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), described)}"
    return str(schema.get("format") or schema.get("type") or "any")


def _problems(described: dict[str, Any]) -> list[tuple[str, str]]:
    first = next(iter(next(iter(described["paths"].values())).values()))
    return [
        (str(status), item["description"])
        for status, item in sorted(first["responses"].items(), key=lambda pair: str(pair[0]))
        if int(status) >= 400
    ]
