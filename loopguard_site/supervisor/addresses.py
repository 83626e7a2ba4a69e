"""Hosts and ports: free ports, URLs and reachability."""

import errno
import ipaddress
import os
import secrets
import socket
import urllib.error
import urllib.request
from pathlib import Path

from .errors import SupervisorError

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, not bound)
_ATTEMPTS = 50
_UNPRIVILEGED_PORT = 1024
_PORTS = range(10_000, 32_767)
"""Below those that Linux gives to outgoing connections, one of which could take a port before its server binds it."""


def url(host: str, port: int) -> str:
    """Return the URL of a port, as reached from this machine."""
    reached = _EVERYWHERE.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def address_of(host: str) -> str:
    """Return the IP address to listen on, which `host` is or names.

    Raises
    ------
    SupervisorError
        It is neither.
    """
    try:
        found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        is_usable = not ipaddress.ip_address(found).is_multicast
    except (OSError, ValueError):
        found, is_usable = "", False
    if not is_usable:
        raise SupervisorError(
            f"--host {host!r} is no address of this machine; 127.0.0.1 and 0.0.0.0 are possible."
        )
    return found


def two_free_ports(host: str, port: int, account: str = "") -> int:
    """Return the first of two consecutive free ports: `port`, or any when it is 0.

    Parameters
    ----------
    account : str
        Name of the account that will listen, if it is another one.

    Raises
    ------
    SupervisorError
        One of the two cannot be listened on; the message names it.
    """
    if port:
        for number in (port, port + 1):
            check_port(host, number, account)
        return port
    return _free_ports(host, 2)


def check_port(host: str, port: int, account: str = "") -> None:
    """Check that an account can listen on a port; that of this process unless one is named.

    Raises
    ------
    SupervisorError
        It cannot; the message names the port.
    """
    if account and port < _first_port_of_everybody():
        raise SupervisorError(_only_root(port, f"the processes run as {account}"))
    problem = _problem(host, port)
    if problem in (errno.EACCES, errno.EPERM):
        raise SupervisorError(_only_root(port, "this account is not root"))
    if problem == errno.EADDRINUSE:
        raise SupervisorError(
            f"Port {port} of {host} is in use. Choose another with --port; the one after it must be free, too."
        )
    if problem:
        raise SupervisorError(
            f"{host} is no address of this machine ({os.strerror(problem)}); choose one with --host, "
            "such as 127.0.0.1 or 0.0.0.0."
        )


def _only_root(port: int, reason: str) -> str:
    return (
        f"Only root may listen on port {port}, and {reason}. Choose a port from {_first_port_of_everybody()} with "
        "--port, and let a reverse proxy listen on the other one."
    )


def _first_port_of_everybody() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _UNPRIVILEGED_PORT


def free_port() -> int:
    """Return a port of the loopback address that nothing uses at the moment."""
    return _free_ports("127.0.0.1", 1)


def _free_ports(host: str, count: int) -> int:
    for _ in range(_ATTEMPTS):
        first = secrets.choice(_PORTS)  # others that choose at this moment must not have the same seed
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
    return not _problem(host, port)


def _problem(host: str, port: int) -> int:
    """Return the number of the error that listening meets; 0 for none."""
    try:
        with socket.socket(_family(host)) as probe:
            # As servers do: a port whose last connections are still closing counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return 0


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
