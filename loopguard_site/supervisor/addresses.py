"""Hosts and ports: free ports, URLs and reachability."""

import random
import socket
import urllib.error
import urllib.request

from .errors import SupervisorError

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, not bound)
_ATTEMPTS = 50
_PORTS = range(10_000, 32_767)
"""Below those that Linux gives to outgoing connections, one of which could take a port before its server binds it."""


def url(host: str, port: int) -> str:
    """Return the URL of a port, as reached from this machine."""
    reached = _EVERYWHERE.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def two_free_ports(host: str, port: int) -> int:
    """Return the first of two consecutive free ports: `port`, or any when it is 0.

    Raises
    ------
    SupervisorError
        One of the two is taken; the message names it.
    """
    if port:
        for number in (port, port + 1):
            if not _is_free(host, number):
                raise SupervisorError(
                    f"Port {number} of {host} is in use. Choose another "
                    "with --port; the one after it must be free, too."
                )
        return port
    return _free_ports(host, 2)


def free_port() -> int:
    """Return a port of the loopback address that nothing uses at the moment."""
    return _free_ports("127.0.0.1", 1)


def _free_ports(host: str, count: int) -> int:
    for _ in range(_ATTEMPTS):
        first = random.choice(_PORTS)  # noqa: S311 (not a secret)
        if all(_is_free(host, port) for port in range(first, first + count)):
            return first
    raise SupervisorError(f"No {count} consecutive free ports were found on {host}.")


def answers(host: str, port: int, path: str) -> bool:
    """Tell whether an HTTP server answers 200 there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url(host, port)}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _is_free(host: str, port: int) -> bool:
    with socket.socket(_family(host)) as probe:
        # As servers do: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
