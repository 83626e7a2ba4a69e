"""Versions in headers: `ETag` in responses, `If-Match` and `If-None-Match` in requests that change something."""

from __future__ import annotations

import re
from typing import Any, Final

from django.http import HttpResponse

from detection.api.problems import Problem
from detection.api.requests import ApiRequest
from detection.services.versions import version_of

NO_VERSION: Final = version_of({})
"""The version of an object that is not stored."""
# Proxies that compress a response mark its version as weak, or name the compression in it.
_ETAG = re.compile(r'(?:W/)?"([0-9a-f]{16})(?:-[a-z]{2,8})?"', re.ASCII)
_HEADER: Final = {"in": "header", "required": False, "schema": {"type": "string"}}
CONDITIONAL: Final[dict[str, Any]] = {
    "parameters": [
        _HEADER
        | {
            "name": "If-Match",
            "description": "Change the object only if this is still its version (`ETag`). Otherwise 412.",
        },
    ]
}
CONDITIONAL_PUT: Final[dict[str, Any]] = {
    "parameters": [
        *CONDITIONAL["parameters"],
        _HEADER
        | {
            "name": "If-None-Match",
            "description": "`*`: create the object only if none is stored. Otherwise 412.",
        },
    ]
}
"""OpenAPI descriptions of the headers."""


def expected_version(request: ApiRequest) -> str | None:
    """Return the version that a request names, or None if it names none.

    Raises
    ------
    Problem
        422 `invalid_value` for a header that is not a version; ignoring it could overwrite a change.
    """
    match, none_match = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if none_match is not None:
        if none_match.strip() != "*" or match is not None or request.method != "PUT":
            raise Problem(
                422,
                "invalid_value",
                "`If-None-Match` must be `*`, with PUT and without `If-Match`.",
                path="If-None-Match",
            )
        return NO_VERSION
    if match is None:
        return None
    found = _ETAG.fullmatch(match.strip())
    if found is None:
        raise Problem(
            422,
            "invalid_value",
            "`If-Match` must be one `ETag` from a response, including its quotes.",
            path="If-Match",
        )
    return found[1]


def with_version(response: HttpResponse, version: str) -> HttpResponse:
    """Return the response with its version as `ETag`."""
    response.headers["ETag"] = f'"{version}"'
    return response
