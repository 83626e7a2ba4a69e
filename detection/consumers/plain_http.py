"""Restricts plain HTTP on `live` to probes. All other requests belong to `web`, which limits their bodies."""

from __future__ import annotations

from typing import cast

import orjson
from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

PROBES = frozenset({"/healthz", "/readyz"})
_ANSWER = orjson.dumps(
    {
        "type": "/api/v1/docs#not_here",
        "title": "Not Found",
        "status": 404,
        "code": "not_here",
        "detail": "Not found. This address serves WebSockets and long polls only.",
    }
)


class ProbesOnly:
    """ASGI middleware that passes probes on and responds 404 to everything else, without reading a body."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass a probe on, or respond 404."""
        request = cast("HTTPScope", scope)
        if request["path"] in PROBES and request["method"] in ("GET", "HEAD"):
            await self._application(scope, receive, send)
            return
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(_ANSWER)).encode()),
        ]
        await send({"type": "http.response.start", "status": 404, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": _ANSWER, "more_body": False})
