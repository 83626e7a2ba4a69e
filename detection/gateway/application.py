"""The ASGI application of the gateway: admits a request, forwards it, and passes the response on."""

from __future__ import annotations

import asyncio
import weakref
from typing import Final, cast

import structlog
from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from detection.gateway.access import KEY_HEADER, Access, Address, read_address
from detection.gateway.client import BodyBudget, Client
from detection.gateway.errors import ClientGone, GatewayError, StreamCut
from detection.gateway.exchange import Exchange
from detection.gateway.guarding import Guarding
from detection.gateway.memory import Memory
from detection.gateway.protocols.anthropic import Anthropic
from detection.gateway.protocols.chat import Chat
from detection.gateway.protocols.responses import Responses
from detection.gateway.protocols.sse import EventTooLarge
from detection.gateway.relaying import relay
from detection.gateway.upstream import Upstreams
from detection.gateway.workers import DatabaseWorkers
from detection.services.gateway.grants import Grant

log = structlog.get_logger(__name__)
PREFIX: Final = "/gateway/"
MAX_EXCHANGES: Final = 2_000
_Protocol = Chat | Anthropic | Responses
PROTOCOLS: Final[dict[tuple[bytes, ...], _Protocol]] = {
    (b"chat", b"completions"): Chat(),
    (b"messages",): Anthropic(),
    (b"responses",): Responses(),
}
"""Guarded routes by the end of their path; whatever the kind of the backend, because many speak several protocols."""


class _Loop:
    """What belongs to one event loop."""

    def __init__(self) -> None:
        self.workers = DatabaseWorkers()
        self.access = Access(self.workers)
        self.upstreams = Upstreams()
        self.bodies = BodyBudget()
        self.guarding = Guarding(self.workers)
        self.memory = Memory()
        self.background: set[asyncio.Task[None]] = set()
        self.exchanges = 0


class Gateway:
    """ASGI middleware that serves ``/gateway/`` and passes all other requests on."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve a request."""
        request = cast("HTTPScope", scope)
        if not request["path"].startswith(PREFIX):
            await self._application(scope, receive, send)
            return
        running = asyncio.get_running_loop()
        loop = self._loops.get(running)
        if loop is None:
            loop = self._loops[running] = _Loop()
        client = Client(request, receive, send)
        loop.exchanges += 1
        work = asyncio.create_task(_serve(loop, client, request))
        gone = asyncio.create_task(client.until_gone())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.exchanges -= 1
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            work.result()


async def _serve(loop: _Loop, client: Client, request: HTTPScope) -> None:
    try:
        if loop.exchanges > MAX_EXCHANGES:
            raise GatewayError(
                503, "busy", "Too many requests at a time. Retry in a moment.", [(b"retry-after", b"2")]
            )
        address = read_address(request["raw_path"] or request["path"].encode())
        grant = await loop.access.grant(address, client.headers.text(KEY_HEADER))
        protocol = protocol_of(client.method, address.path)
        if protocol is None:
            await _pass_through(loop, client, address, grant)
        else:
            path = address.path + (b"?" + client.query if client.query else b"")
            await Exchange(loop, client, path, grant, protocol).run()
    except GatewayError as error:
        if not client.has_started:
            await client.respond_error(error)
    except (ClientGone, StreamCut, EventTooLarge):
        # Returning without the end of a response closes the connection: the client sees it cut, as without us.
        pass
    except Exception:
        log.exception("gateway_request_failed", request_id=client.request_id)
        if not client.has_started:
            detail = "The gateway failed. The log of `live` has the reason."
            await client.respond_error(GatewayError(500, "internal_error", detail))


async def _pass_through(loop: _Loop, client: Client, address: Address, grant: Grant) -> None:
    """Forward a request unread. Only models and token counts get the credential of the backend."""
    backend = grant.backend
    is_listed = is_harmless(client.method, address.path)
    if backend.credential and not is_listed and not client.headers.has_credential:
        raise GatewayError(
            403,
            "credential_required",
            "This path needs a credential of the provider, which the client must send.",
        )
    headers = client.headers.forwarded(backend, with_credential=is_listed, body_length=None)
    if client.has_body and b"content-length" not in client.headers.values:
        headers.append((b"transfer-encoding", b"chunked"))
    if not client.has_body:
        async for _ in client.body():
            pass
    path = address.path + (b"?" + client.query if client.query else b"")
    body = client.body() if client.has_body else b""
    async with loop.upstreams.request(backend, client.method, path, headers, body) as response:
        await relay(client, response)


def protocol_of(method: bytes, path: bytes) -> _Protocol | None:
    """Return the protocol of a guarded route; None for every other one."""
    segments = tuple(path.strip(b"/").split(b"/"))
    if method != b"POST":
        return None
    return next((one for end, one in PROTOCOLS.items() if segments[-len(end) :] == end), None)


def is_harmless(method: bytes, path: bytes) -> bool:
    """Return whether a path lists models or counts tokens."""
    segments = path.rstrip(b"/").split(b"/")
    if method == b"GET":
        return b"models" in segments[-2:]
    return method == b"POST" and segments[-1] in (b"count_tokens", b"input_tokens")
