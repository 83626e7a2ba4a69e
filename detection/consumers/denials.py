"""Rejects handshakes of sockets with a status, before they are accepted: nothing of a rejected socket is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import orjson


async def deny(
    send: Callable[[Any], Awaitable[None]], status: int, code: str, detail: str, *headers: tuple[bytes, bytes]
) -> None:
    """Respond to a handshake with a problem."""
    document = {
        "type": f"/api/v1/docs#{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
    }
    sent = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store"), *headers]
    await send({"type": "websocket.http.response.start", "status": status, "headers": sent})
    await send({"type": "websocket.http.response.body", "body": orjson.dumps(document), "more_body": False})
