"""HTTP requests to addresses that users configured. Every connection is checked when it is made.

An address must be public, or in a network that the deployment allows (`ALERT_ALLOWED_NETWORKS`). A name is resolved
once, and the connection goes to the address that was checked, so that rebinding the name has no effect. Redirects are
not followed, at most 64 KB of a response are read, and the whole exchange has one deadline.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache

import httpcore
import httpx
from django.conf import settings

from detection.engine.durations import exact
from detection.services.errors import Invalid

DEADLINE_SECONDS = 5.0
MAX_RESPONSE_BYTES = 64 * 1024
PORTS = (443, 8443)
MAX_ADDRESS_LENGTH = 2000

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_RESERVED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
        "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip
"""Loopback, private, link-local, shared, multicast and reserved ranges, and ranges that embed IPv4 addresses."""
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_NUMBER = re.compile(r"(?i)(?:0x[0-9a-f]*|[0-9]+)")
_HOST_LABEL = re.compile(r"(?i)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class AddressNotAllowed(Exception):
    """The address is not allowed; the message gives the reason without parts that may be secret."""


class Unreachable(Exception):
    """There was no response; the message says why."""


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A parsed address, used for both the check and the connection."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def shown(self) -> str:
        """The part that is not secret: paths and queries often contain tokens."""
        default = 443 if self.scheme == "https" else 80
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port == default else f':{self.port}'}/…"


@dataclass(frozen=True, slots=True)
class OutgoingResponse:
    """The response of a receiver."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts if text.strip())


def allowed_networks() -> tuple[Network, ...]:
    """Return the networks that the deployment allows in addition to public ones."""
    return _networks(tuple(settings.ALERT_ALLOWED_NETWORKS))


def _lies_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def is_allowed_network(address: Address) -> bool:
    """Return whether the deployment allows the network of this address."""
    return _lies_in(address, allowed_networks())


def check_address(address: Address) -> None:
    """Check that an address is public or in an allowed network.

    Raises
    ------
    AddressNotAllowed
        With the address in the message.
    """
    if is_allowed_network(address):
        return
    is_scoped = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    if is_scoped or _lies_in(address, _RESERVED) or not address.is_global or address.is_multicast:
        raise AddressNotAllowed(
            f"{address} is neither public nor in a network that this deployment allows. "
            f"{_allowing(address)} would allow it."
        )


def _allowing(address: Address) -> str:
    """Return the setting that allows connections to an address."""
    network = ipaddress.ip_network(address.compressed.partition("%")[0])
    return f"`LOOPGUARD_ALERT_ALLOWED_NETWORKS={network}` in the environment of LoopGuard"


def parse(url: str) -> HttpTarget:
    """Parse the address of a webhook. Forms that parsers interpret differently are not allowed.

    Parameters
    ----------
    url
        ``https://host[:port]/path``. Plain http and ports other than 443 and 8443 work only in networks that the
        deployment allows; `resolve` checks that.

    Raises
    ------
    AddressNotAllowed
        If it has another form.
    """
    if len(url) > MAX_ADDRESS_LENGTH or not url.isascii() or _UNSAFE.search(url):
        raise AddressNotAllowed("`address` must not contain spaces, backslashes or non-ASCII characters.")
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise AddressNotAllowed("`address` must be a URL.") from error
    if parts.scheme not in ("http", "https"):
        raise AddressNotAllowed("`address` must start with https://.")
    if parts.userinfo:
        raise AddressNotAllowed("`address` must not contain a user name or password.")
    host = parts.raw_host.decode("ascii")
    if not _is_plain_host(host):
        raise AddressNotAllowed("The host in `address` must be a name or a plain IP address.")
    if parts.port == 0:
        raise AddressNotAllowed("The port in `address` must be between 1 and 65535.")
    return HttpTarget(
        parts.scheme,
        host,
        parts.port or (443 if parts.scheme == "https" else 80),
        parts.raw_path.decode("ascii"),
    )


def _is_plain_host(host: str) -> bool:
    if not host or len(host) > 253 or host.endswith("."):
        return False
    try:
        return str(ipaddress.ip_address(host)) == host.lower() and "%" not in host
    except ValueError:
        labels = host.split(".")
        # 2130706433, 0x7f.1 and 0177.0.0.1 are addresses to the resolver and names to most checks.
        return not _NUMBER.fullmatch(labels[-1]) and all(_HOST_LABEL.fullmatch(label) for label in labels)


def resolve(target: HttpTarget) -> list[Address]:
    """Resolve the host once and check all of its addresses.

    Raises
    ------
    AddressNotAllowed
        If an address, the scheme or the port is not allowed.
    Unreachable
        If the name does not resolve.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        https = (
            ""
            if target.scheme == "https"
            else " Outside allowed networks, the address must start with https://."
        )
        raise Unreachable(f"The host name does not resolve.{https}") from error
    addresses = list(dict.fromkeys(ipaddress.ip_address(entry[4][0]) for entry in found))
    for address in addresses:
        check_address(address)
        if is_allowed_network(address):
            continue
        if target.scheme != "https":
            raise AddressNotAllowed(
                f"Plain http is not allowed. Use https. {_allowing(address)} would allow it."
            )
        if target.port not in PORTS:
            raise AddressNotAllowed(
                f"Port {target.port} is not allowed. Use {' or '.join(map(str, PORTS))}. "
                f"{_allowing(address)} would allow it."
            )
    return addresses


def check_url(url: str) -> HttpTarget:
    """Check the address of a webhook before it is stored: its form, and what its host resolves to now.

    Raises
    ------
    Invalid
        For the field ``address``, with the reason.
    """
    try:
        target = parse(url)
        resolve(target)
    except (AddressNotAllowed, Unreachable) as error:
        raise Invalid(str(error), field="address", code="address_not_allowed") from error
    return target


class _Stream(httpcore.NetworkStream):
    """A connection with one deadline for all its steps."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the exchange took too long")
        return left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(
            self._stream.start_tls(ssl_context, server_hostname, self._left()),
            self._deadline,
        )

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


class _CheckedBackend(httpcore.NetworkBackend):
    """Connects to the checked addresses of one target. TLS still verifies the name."""

    def __init__(self, target: HttpTarget, deadline: float) -> None:
        self._target, self._deadline = target, deadline
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        problem: Exception = httpcore.ConnectError("no address")
        for address in resolve(self._target):
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            try:
                stream = self._sockets.connect_tcp(
                    str(address), self._target.port, timeout=left, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
            else:
                return _Stream(stream, self._deadline)
        raise problem


class CheckedAsyncBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses, for connections of an event loop that are kept open.

    Parameters
    ----------
    target
        Scheme, host and port of all its connections.
    resolver
        Resolves names; a lookup can block for seconds, so it needs threads of its own.
    """

    def __init__(self, target: HttpTarget, resolver: Executor) -> None:
        self._target, self._resolver = target, resolver
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the signature of the base class)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of the target that accepts; the name is resolved anew."""
        problem: Exception = httpcore.ConnectError("no address")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            addresses = await loop.run_in_executor(self._resolver, resolve, self._target)
        for address in addresses:
            try:
                return await self._sockets.connect_tcp(
                    str(address), self._target.port, timeout=timeout, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        raise problem

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return the context of outgoing connections: verified certificates, nothing from the environment."""
    return httpx.create_ssl_context(trust_env=False)


def post(url: str, headers: Mapping[str, str], body: bytes) -> OutgoingResponse:
    """Send one POST request with the signed bytes; see `request`."""
    return request("POST", url, headers, body)


def request(method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> OutgoingResponse:
    """Send one request and return the response, whatever its status.

    Parameters
    ----------
    method
        ``GET`` or ``POST``.
    url
        Checked again, with the addresses that its name resolves to now.
    headers
        ASCII.
    body
        The bytes to send.

    Returns
    -------
    OutgoingResponse
        With at most 64 KB of the body.

    Raises
    ------
    AddressNotAllowed
        If the address is not allowed.
    Unreachable
        If there was no complete response within five seconds.
    """
    target = parse(url)
    backend = _CheckedBackend(target, time.monotonic() + DEADLINE_SECONDS)
    address = httpcore.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )
    default = 443 if target.scheme == "https" else 80
    host = f"[{target.host}]" if ":" in target.host else target.host
    all_headers = {
        **headers,
        "Host": host if target.port == default else f"{host}:{target.port}",
        "Content-Length": str(len(body)),
        "Connection": "close",
        "Accept-Encoding": "identity",
    }
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=tls_context(), network_backend=backend, max_connections=1
            ) as pool,
            pool.stream(method, address, headers=list(all_headers.items()), content=body) as response,
        ):
            received = bytearray()
            for chunk in response.iter_stream():
                received += chunk
                if len(received) >= MAX_RESPONSE_BYTES:
                    break
            return OutgoingResponse(
                response.status,
                {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers},
                bytes(received[:MAX_RESPONSE_BYTES]),
            )
    except httpcore.TimeoutException as error:
        raise Unreachable(f"No complete response within {exact(DEADLINE_SECONDS)}.") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError, OSError) as error:
        raise Unreachable(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """Return the cause without a path or query that the exception's message might contain."""
    text = str(error)
    if "certificate" in text.lower():
        return "The certificate of the receiver is not valid for this host."
    if isinstance(error, httpcore.ConnectError):
        return f"Could not connect: {text[:120] or 'unknown reason'}."
    return f"The connection failed: {type(error).__name__}."
