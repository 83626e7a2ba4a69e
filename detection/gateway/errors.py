"""Responses of the gateway itself, in a form that the SDKs of all protocols understand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
}


@dataclass(slots=True)
class GatewayError(Exception):
    """An error response of the gateway.

    Attributes
    ----------
    code
        Stable, in snake case.
    """

    status: int
    code: str
    detail: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def document(self, request_id: str) -> dict[str, object]:
        """Return OpenAI's `error` with Anthropic's `type` around it."""
        error = {
            "type": _TYPES.get(self.status, "api_error"),
            "code": self.code,
            "message": f"LoopGuard: {self.detail}",
            "param": None,
        }
        return {"type": "error", "error": error, "request_id": request_id}


class ClientGone(Exception):
    """The client has closed its connection."""


class StreamCut(Exception):
    """The response of the upstream ended early; the client sees the same."""
