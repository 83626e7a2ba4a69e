"""The typed request of API routes."""

from __future__ import annotations

from typing import cast

from django.http import HttpRequest

from detection.services.audit import KEY_PREFIX, Actor
from detection.services.keys import Principal
from detection.web.request_context import IdentifiedRequest


class ApiRequest(IdentifiedRequest):
    """A request of the API; `ApiKeyAuth` sets its attributes before the route runs.

    Attributes
    ----------
    principal : Principal
        The key and its project.
    attempt : str
        Name of the route on the Connect screen and in metrics; empty for routes that are not counted there.
    key_hint : str
        The part of an unknown key that may be shown.
    media_type : str
        Content type of the body, for routes that accept several.
    has_problem : bool
        Set once the response is a problem document.
    """

    principal: Principal
    attempt: str
    key_hint: str
    media_type: str
    has_problem: bool


def as_api_request(request: HttpRequest) -> ApiRequest:
    """Return the same request with the type that routes use."""
    return cast("ApiRequest", request)


def actor_of(request: ApiRequest) -> Actor:
    """Return the caller as the audit log names it."""
    return Actor(
        f"{KEY_PREFIX}{request.principal.public_id}",
        address=request.client_address,
        request_id=request.request_id,
    )
