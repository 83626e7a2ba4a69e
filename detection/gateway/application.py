"""The ASGI application of the gateway: admits a request, forwards it, and passes the response on."""

from __future__ import annotations

import asyncio
import weakref
from typing import Final, cast

import structlog
from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from detection.gateway import litellm
from detection.gateway.access import KEY_HEADER, Address, read_address, while_granted
from detection.gateway.client import Client
from detection.gateway.errors import ClientGone, GatewayError, StreamCut
from detection.gateway.exchange import Exchange
from detection.gateway.loop_state import LoopState
from detection.gateway.protocols.sse import EventTooLarge
from detection.gateway.relaying import relay
from detection.gateway.routes import is_harmless, protocol_of
from detection.services.gateway.grants import Grant
from detection.web.process_metrics import CONNECTIONS

log = structlog.get_logger(__name__)
PREFIX: Final = "/gateway/"


class Gateway:
    """ASGI middleware that serves ``/gateway/`` and passes all other requests on."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopState] = (
            weakref.WeakKeyDictionary()
        )

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve a request."""
        request = cast("HTTPScope", scope)
        if not request["path"].startswith(PREFIX):
            await self._application(scope, receive, send)
            return
        running = asyncio.get_running_loop()
        loop = self._loops.get(running)
        if loop is None:
            loop = self._loops[running] = LoopState()
        client = Client(request, receive, send)
        work = asyncio.create_task(_serve(loop, client, request))
        gone = asyncio.create_task(client.until_gone())
        try:
            with CONNECTIONS.labels("gateway").track_inprogress():
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            work.result()


async def _serve(loop: LoopState, client: Client, request: HTTPScope) -> None:
    try:
        path = request["raw_path"] or request["path"].encode()
        if path == litellm.PATH and client.method == b"POST":
            await litellm.LiteLLMGuardrail(loop, client).serve()
            return
        address = read_address(path)
        grant = await loop.access.grant(address, client.headers.text(KEY_HEADER))
        protocol = protocol_of(client.method, address.path, client.query)
        with loop.exchange(client):
            async with while_granted(grant.principal, client):
                if protocol is None:
                    await _pass_through(loop, client, address, grant)
                else:
                    path = address.path + (b"?" + client.query if client.query else b"")
                    await Exchange(loop, client, path, grant, protocol).run()
    except GatewayError as error:
        await client.respond_error(error)
    except (ClientGone, StreamCut, EventTooLarge):
        # Returning without the end of a response closes the connection: the client sees it cut, as without us.
        pass
    except Exception:
        log.exception("gateway_request_failed", request_id=client.request_id)
        detail = "The gateway failed. The log of `live` has the reason."
        await client.respond_error(GatewayError(500, "internal_error", detail))


async def _pass_through(loop: LoopState, client: Client, address: Address, grant: Grant) -> None:
    """Forward a request unread, and count it as one that is not guarded.

    Only models and token counts get the credential of the backend.
    """
    backend = grant.backend
    is_listed = is_harmless(client.method, address.path)
    if client.method == b"POST" and not is_listed:
        loop.traffic.counts(backend).unguarded += 1
    if backend.credential and not is_listed and not client.headers.has_credential:
        raise GatewayError(
            403,
            "credential_required",
            "This path needs a credential of the provider, which the client must send.",
        )
    headers = client.headers.forwarded(backend, with_credential=is_listed, body_length=None)
    if client.has_body and b"content-length" not in client.headers.values:
        headers.append((b"transfer-encoding", b"chunked"))
    sent = client.body(loop.unfinished, grant.principal.public_id)
    if not client.has_body:
        async for _ in sent:
            pass
    path = address.path + (b"?" + client.query if client.query else b"")
    body = sent if client.has_body else b""
    async with loop.upstreams.request(backend, client.method, path, headers, body, client) as response:
        await relay(client, response)
