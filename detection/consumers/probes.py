"""Plain HTTP on `live`: probes only. All other requests belong to `web`, which limits their bodies."""

from __future__ import annotations

import asyncio
from typing import Final, cast

import orjson
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
from channels.db import database_sync_to_async
from django.db import DatabaseError
from prometheus_client import CONTENT_TYPE_LATEST

from detection.selectors.database_check import database_check
from detection.web import process_metrics
from detection.web.ending import NOT_READY, is_ending

_JSON, _PROBLEM = b"application/json", b"application/problem+json"
_HEALTHY = 200, _JSON, orjson.dumps({"status": "ok"})
_READY = 200, _JSON, orjson.dumps({"status": "ready", "database": "ok"})
_NOT_READY = 503, _JSON, orjson.dumps({"status": "not ready", "database": "unavailable"})
_ENDING = 503, _JSON, NOT_READY
_NO_KEY = 401, _JSON, orjson.dumps({"status": "a key with the scope metrics or admin is required"})
_METRICS: Final = CONTENT_TYPE_LATEST.encode()
_NOT_HERE = (
    404,
    _PROBLEM,
    orjson.dumps(
        {
            "type": "/api/v1/docs#not_here",
            "title": "Not Found",
            "status": 404,
            "code": "not_here",
            "detail": "Not found. This address serves WebSockets and long polls only.",
        }
    ),
)


async def probes(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Respond to a probe, and 404 to everything else, without reading a body.

    The responses are those of `web`. Django's request handler would import all pages and routes for them, which takes a
    third of the time that `live` needs to start.
    """
    request = cast("HTTPScope", scope)
    status, content_type, body = answer = await _answer(request)
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if answer is _NOT_READY:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    sent = b"" if request["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": sent, "more_body": False})


async def _answer(request: HTTPScope) -> tuple[int, bytes, bytes]:
    if request["method"] not in ("GET", "HEAD"):
        return _NOT_HERE
    if request["path"] == "/healthz":
        return _HEALTHY
    if request["path"] == "/readyz" and is_ending.is_set():
        return _ENDING
    if request["path"] == "/metrics":
        return await _metrics(request)
    if request["path"] == "/readyz":
        return _READY if await asyncio.to_thread(database_check.is_available) else _NOT_READY
    return _NOT_HERE


async def _metrics(request: HTTPScope) -> tuple[int, bytes, bytes]:
    """Return the metrics of this process, for this machine and for keys, as `web` does."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request["headers"]}
    address = request["client"][0] if request["client"] else ""
    if not process_metrics.is_of_this_machine(address, headers):
        find = database_sync_to_async(process_metrics.readers.principal_of)
        try:
            reader = await find(headers.get("authorization", ""))
        except DatabaseError:
            return _NOT_READY
        if reader is None:
            return _NO_KEY
    return 200, _METRICS, process_metrics.exposition()
