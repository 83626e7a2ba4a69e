"""Connections to model servers: checked addresses, kept open, one pool per origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

import httpcore

from detection.gateway.client import Client
from detection.gateway.errors import ClientGone, GatewayError, StreamCut
from detection.gateway.headers import Headers
from detection.gateway.traffic import TrafficCounter
from detection.services import outgoing_http
from detection.services.gateway.backends import is_allowed_upstream
from detection.services.gateway.grants import Backend
from detection.services.outgoing_http import AddressNotAllowed, CheckedAsyncBackend, HttpTarget, Unreachable

MAX_CONNECTIONS: Final = 1_000
MAX_IDLE_CONNECTIONS: Final = 100
IDLE_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 900.0
"""Longer than any client waits by default, so a silent model server looks the same as without the gateway."""
MAX_POOLS: Final = 50
MAX_STATUS: Final = 599


class Upstreams:
    """The pools of connections of one event loop; counts all requests."""

    def __init__(self, traffic: TrafficCounter) -> None:
        self._traffic = traffic
        self._pools: dict[tuple[str, str, int], httpcore.AsyncConnectionPool] = {}
        self._resolver = ThreadPoolExecutor(4, thread_name_prefix="gateway-names")

    async def _pool(self, target: HttpTarget) -> httpcore.AsyncConnectionPool:
        origin = (target.scheme, target.host, target.port)
        pool = self._pools.get(origin)
        if pool is None:
            if len(self._pools) >= MAX_POOLS:
                oldest = self._pools.pop(next(iter(self._pools)))
                if not oldest.connections:
                    await oldest.aclose()
            pool = self._pools[origin] = httpcore.AsyncConnectionPool(
                ssl_context=outgoing_http.tls_context(),
                network_backend=CheckedAsyncBackend(target, self._resolver),
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_SECONDS,
            )
        return pool

    @asynccontextmanager
    async def request(
        self,
        backend: Backend,
        method: bytes,
        path: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        client: Client,
        model: str = "",
    ) -> AsyncIterator[httpcore.Response]:
        """Send a request and yield the response, whose body is not read yet.

        Parameters
        ----------
        path
            What follows the base URL, with the query.
        client
            The client of the response; if it disconnects before it has its answer, that is counted.
        model
            The model that is asked for, if that is known.

        Raises
        ------
        GatewayError
            502 or 504 if there is no response.
        """
        target = _target(backend)
        pool = await self._pool(target)
        url = httpcore.URL(
            scheme=target.scheme.encode(),
            host=target.host.encode(),
            port=target.port,
            target=target.path.rstrip("/").encode() + path,
        )
        timeouts = {
            "connect": CONNECT_SECONDS,
            "pool": CONNECT_SECONDS,
            "write": WRITE_SECONDS,
            "read": SILENCE_SECONDS,
        }
        request = httpcore.Request(
            method,
            url,
            headers=[(b"host", _host(target)), *headers],
            content=body,
            extensions={"timeout": timeouts},
        )
        try:
            response = await pool.handle_async_request(request)
        except (AddressNotAllowed, Unreachable) as error:
            self._count_failure(backend, "unreachable")
            raise GatewayError(502, "upstream_unreachable", str(error)) from error
        except (httpcore.TimeoutException, TimeoutError) as error:
            self._count_failure(backend, "timeouts")
            raise GatewayError(
                504, "upstream_timeout", "The model server did not respond in time."
            ) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            self._count_failure(backend, "unreachable")
            raise GatewayError(
                502, "upstream_unreachable", "The connection to the model server failed."
            ) from error
        except asyncio.CancelledError:
            counts = self._traffic.counts(backend)
            counts.requests += 1
            counts.abandoned += not client.is_denied
            raise
        if not 200 <= response.status <= MAX_STATUS:
            await response.aclose()
            self._count_failure(backend, "unreachable")
            raise GatewayError(
                502, "upstream_unreachable", "The model server responded with an invalid status."
            )
        self._traffic.count_request(backend, model, response.status)
        known_model = model if response.status == 200 else ""
        try:
            yield response
        except StreamCut:
            self._traffic.counts(backend, known_model).count_error("cut")
            raise
        except (asyncio.CancelledError, ClientGone):
            if not (client.has_answer or client.is_denied):
                self._traffic.counts(backend, known_model).abandoned += 1
            raise
        finally:
            await response.aclose()

    def _count_failure(self, backend: Backend, kind: str) -> None:
        counts = self._traffic.counts(backend)
        counts.requests += 1
        counts.count_error(kind)


def _target(backend: Backend) -> HttpTarget:
    if not is_allowed_upstream(backend.base_url):
        raise GatewayError(
            502, "upstream_not_allowed", "The address of the backend is not in LOOPGUARD_GATEWAY_UPSTREAMS."
        )
    try:
        return outgoing_http.parse(backend.base_url)
    except AddressNotAllowed as error:
        raise GatewayError(502, "upstream_not_allowed", str(error)) from error


def _host(target: HttpTarget) -> bytes:
    default = 443 if target.scheme == "https" else 80
    host = f"[{target.host}]" if ":" in target.host else target.host
    return (host if target.port == default else f"{host}:{target.port}").encode()
