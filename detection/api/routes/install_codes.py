"""The route that turns a code from Connect into a key; the only one that needs no key."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Router

from detection.api.problems import Problem
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.install_codes import InstallCodeSchema, InstalledKeySchema
from detection.api.typed_bodies import described, required_body
from detection.services import install_codes
from detection.services.accounts import sign_in_throttle

router = Router(tags=["integrations"])


@router.post(
    "/install-codes/exchange",
    auth=None,
    response={201: InstalledKeySchema},
    summary="Create a key with an install code",
    openapi_extra={
        **described(InstallCodeSchema, required=True),
        "responses": {410: {"description": "The code was used or has expired."}},
    },
)
def exchange_install_code(request: ApiRequest) -> HttpResponse:
    """Turn a code from Connect into a key, once and within ten minutes. Needs no key; failed tries are throttled."""
    body = required_body(request, InstallCodeSchema)
    address = request.client_address or ""
    attempt = sign_in_throttle.begin(f"install codes of {address}", address)
    if attempt.wait_seconds:
        raise Problem(
            429,
            "rate_limited",
            "Too many codes were wrong. Try again later.",
            headers={"Retry-After": str(attempt.wait_seconds)},
        )
    made = install_codes.exchange(
        body.code, body.machine, address=request.client_address, request_id=request.request_id
    )
    attempt.withdraw()
    return json_response(
        {
            "key": made.token,
            "name": made.key_name,
            "project": made.project,
            "integration": made.integration,
            "scope": made.scope,
        },
        status=201,
    )
