"""JSON responses, and rows as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import orjson
from django.http import HttpResponse

LIST_AS_FILE: Final = {
    "responses": {
        200: {
            "description": "The same filters and order as the list.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        }
    }
}
"""OpenAPI description of the export of a list."""


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"cannot be JSON: {type(value).__name__}")


def json_response(document: Any, status: int = 200) -> HttpResponse:
    """Return a document as a JSON response; times are ISO 8601 with an offset."""
    return HttpResponse(
        orjson.dumps(document, default=_plain), status=status, content_type="application/json"
    )


def list_response(
    documents: Iterable[dict[str, object]], next_cursor: str | None = None, *, is_partial: bool = False
) -> HttpResponse:
    """Return a page of a list; without a cursor, it is the last one."""
    more = {"is_partial": True} if is_partial else {}
    return json_response({"items": [*documents], "next_cursor": next_cursor, **more})


def empty_response() -> HttpResponse:
    """Return 204 No Content."""
    return HttpResponse(status=204)
