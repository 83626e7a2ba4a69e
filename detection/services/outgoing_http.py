"""Speaks to addresses that users named, and to nobody else: every connection is checked at the moment it is made.

An address is refused unless it is public or the deployment allows its network (`ALERT_ALLOWED_NETWORKS`). A name is
resolved once and the connection goes to the very address that was checked, so that a name which answers differently a
moment later gains nothing. Redirects are not followed, an answer is read up to 64 KB, and a whole exchange has one
deadline. What is sent, and what an answer means, belongs to `delivery`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import httpcore
import httpx
from django.conf import settings

from detection.services.errors import Invalid

DEADLINE_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 * 1024
PORTS = (443, 8443)
MAX_ADDRESS_LENGTH = 2000

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
        "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip
"""Loopback, private, link-local, shared, multicast and reserved ranges, and the forms that wrap a version 4 address."""
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_NUMBER = re.compile(r"(?i)(?:0x[0-9a-f]*|[0-9]+)")
_HOST_LABEL = re.compile(r"(?i)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class Refused(Exception):
    """The address may not be spoken to; the text says why, without the parts that may be secret."""


class Unreachable(Exception):
    """There was no answer; the text says what happened."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked address: the one form that both the check and the connection use."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def shown(self) -> str:
        """The part that people may see: paths and queries often hold tokens."""
        default = 443 if self.scheme == "https" else 80
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port == default else f':{self.port}'}/…"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver said."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts if text.strip())


def allowed_networks() -> tuple[Network, ...]:
    """Networks that the deployment opens, though they are not public."""
    return _networks(tuple(settings.ALERT_ALLOWED_NETWORKS))


def _lies_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def is_allowed_network(address: Address) -> bool:
    """Whether the deployment opened the network of this address."""
    return _lies_in(address, allowed_networks())


def check_address(address: Address) -> None:
    """Refuse every address that is not an ordinary public one, unless the deployment allows its network.

    Raises
    ------
    Refused
        With the address in the text.
    """
    if is_allowed_network(address):
        return
    is_scoped = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    if is_scoped or _lies_in(address, _REFUSED) or not address.is_global or address.is_multicast:
        raise Refused(f"{address} is not a public address, and this deployment does not allow its network.")


def parse(url: str) -> Target:
    """Read a webhook's address and refuse forms that parsers read differently.

    Parameters
    ----------
    url
        ``https://host[:port]/path``; plain http and other ports than 443 and 8443 only reach networks that the deployment
        allows, which `resolve` checks.

    Raises
    ------
    Refused
        When it is not such an address.
    """
    if len(url) > MAX_ADDRESS_LENGTH or not url.isascii() or _UNSAFE.search(url):
        raise Refused("The address may hold neither spaces, backslashes nor characters beyond ASCII.")
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Refused("This is not an address.") from error
    if parts.scheme not in ("http", "https"):
        raise Refused("The address must begin with https://.")
    if parts.userinfo:
        raise Refused("The address may not hold a user name or password.")
    host = parts.raw_host.decode("ascii")
    if not _is_plain_host(host):
        raise Refused("The host must be a name, or an IP address in its usual form.")
    return Target(
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


def resolve(target: Target) -> list[Address]:
    """Look the host up once and check everything that comes back; one bad answer refuses the name.

    Raises
    ------
    Refused
        When an address, the scheme or the port is not allowed.
    Unreachable
        When the name does not resolve.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable("The host name does not resolve.") from error
    addresses = list(dict.fromkeys(ipaddress.ip_address(entry[4][0]) for entry in found))
    for address in addresses:
        check_address(address)
        if is_allowed_network(address):
            continue
        if target.scheme != "https":
            raise Refused("Plain http is refused; use https.")
        if target.port not in PORTS:
            raise Refused(f"Port {target.port} is refused; allowed are {' and '.join(map(str, PORTS))}.")
    return addresses


def check_url(url: str) -> Target:
    """Check a webhook's address as at saving: its form, and where it leads now.

    Raises
    ------
    Invalid
        With the reason, for the field ``address``.
    """
    try:
        target = parse(url)
        resolve(target)
    except (Refused, Unreachable) as error:
        raise Invalid(str(error), field="address", code="address_refused") from error
    return target


class _Stream(httpcore.NetworkStream):
    """A connection whose every step ends with the exchange's deadline."""

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
    """Connects to the checked addresses of one target, whatever name the connection is for; names stay in TLS."""

    def __init__(self, target: Target, deadline: float) -> None:
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


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


def post(url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """Send one POST and return the answer, whatever its status.

    Parameters
    ----------
    url
        Checked here again, with the addresses that its name has now.
    headers
        Plain ASCII.
    body
        The bytes as they are signed.

    Returns
    -------
    Answer
        With at most 64 KB of the body; the rest is left unread.

    Raises
    ------
    Refused
        When the address may not be spoken to.
    Unreachable
        When there was no answer within five seconds, counted from the first step to the last byte.
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
            httpcore.ConnectionPool(ssl_context=_tls(), network_backend=backend, max_connections=1) as pool,
            pool.stream("POST", address, headers=list(all_headers.items()), content=body) as response,
        ):
            received = bytearray()
            for chunk in response.iter_stream():
                received += chunk
                if len(received) >= MAX_ANSWER_BYTES:
                    break
            return Answer(
                response.status,
                {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers},
                bytes(received[:MAX_ANSWER_BYTES]),
            )
    except httpcore.TimeoutException as error:
        raise Unreachable(f"No whole answer within {DEADLINE_SECONDS:.0f} seconds.") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError, OSError) as error:
        raise Unreachable(_in_words(error)) from error


def _in_words(error: BaseException) -> str:
    """Say what went wrong without a path or a query that might stand in an exception's text."""
    text = str(error)
    if "certificate" in text.lower():
        return "The receiver's certificate is not valid for this host."
    if isinstance(error, httpcore.ConnectError):
        return f"Could not connect: {text[:120] or 'no reason given'}."
    return f"The connection broke: {type(error).__name__}."
