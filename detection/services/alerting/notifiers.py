"""Sends notifications to chat, e-mail and paging services with the apprise library, which is imported at first use.

Apprise opens its own connections. An audit hook of the interpreter sees every connection of the sending thread with its
final address, which no redirect, name or setting can bypass, and applies the rules of `outgoing_http`. Only services
without local resources are allowed. Settings that read local files or disable checks are not allowed, nor is mail
without encryption outside the networks that the deployment allows.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from detection.services import outgoing_http
from detection.services.errors import Invalid
from detection.services.outgoing_http import AddressNotAllowed, Unreachable

SCHEMES = frozenset(
    {
        "betterstack", "dingtalk", "discord", "feishu", "flock", "gchat", "gotify", "gotifys", "ilert",
        "incidentio", "lark", "line", "mailto", "mailtos", "matrix", "matrixs", "mmost", "mmosts", "msteams",
        "ntfy", "ntfys", "opsgenie", "pagerduty", "pagertree", "pbul", "pover", "rocket", "rockets", "signl4",
        "slack", "splunk", "squadcast", "tgram", "twilio", "victorops", "webex", "workflow", "workflows",
        "wxteams", "zulip",
    }
)  # fmt: skip
_BLOCKED_SETTINGS = re.compile(
    r"template|pgp|wkd|smime|key_?file|attach|redirect|verify|cto|rto|e2ee|path|cert|format|overflow|emojis",
    re.IGNORECASE,
)
_BETWEEN_PARTS = re.compile(r"[^A-Za-z0-9_.-]+")
_guard = threading.local()
_hook_lock = threading.Lock()
_is_hooked = False


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "socket.sendto") or not getattr(_guard, "is_active", False):
        return
    address = arguments[1]
    if not isinstance(address, tuple) or not address:
        raise AddressNotAllowed("Only network addresses are allowed.")
    try:
        parsed = ipaddress.ip_address(str(address[0]))
    except ValueError:
        raise AddressNotAllowed("Connections to unresolved names are not allowed.") from None
    _check_peer(parsed)


def _check_peer(address: outgoing_http.Address) -> None:
    outgoing_http.check_address(address)
    if getattr(_guard, "is_bare_mail", False) and not outgoing_http.is_allowed_network(address):
        raise AddressNotAllowed("Mail needs encryption. Use mailtos:// or mode=starttls.")


@contextmanager
def _guarded() -> Iterator[list[str]]:
    """Check every connection of this thread, and collect apprise's warnings instead of logging them."""
    global _is_hooked  # an audit hook cannot be removed, so it is added once
    with _hook_lock:
        if not _is_hooked:
            sys.addaudithook(_on_audit)
            _is_hooked = True
    complaints: list[str] = []
    own_thread = threading.get_ident()

    class _Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == own_thread:
                complaints.append(record.getMessage())

    collector = _Collector(logging.WARNING)
    logger = logging.getLogger("apprise")
    logger.propagate = False  # its messages may contain secrets of an address
    logger.addHandler(collector)
    _guard.is_active = True
    try:
        yield complaints
    finally:
        _guard.is_active = _guard.is_bare_mail = False
        logger.removeHandler(collector)


@lru_cache(maxsize=1)
def _library() -> Any:
    import apprise

    return apprise


def _plugin(address: str) -> Any:
    """Return the plugin of an address, for use inside `_guarded`."""
    apprise = _library()
    asset = apprise.AppriseAsset(
        app_id="LoopGuard",
        app_desc="LoopGuard",
        app_url="",
        http_redirects=False,
        allow_templates=False,
        secure_logging=True,
        async_mode=False,
        storage_mode=apprise.PersistentStoreMode.MEMORY,
    )
    plugin = apprise.Apprise.instantiate(address, asset=asset, suppress_exceptions=True)
    if plugin is None:
        return None
    plugin.socket_connect_timeout = plugin.socket_read_timeout = outgoing_http.DEADLINE_SECONDS
    _guard.is_bare_mail = hasattr(plugin, "smtp_host") and plugin.secure_mode == "insecure"
    return plugin


def check(address: str) -> str:
    """Check an address before it is stored, and return the part that is not secret.

    Parameters
    ----------
    address
        An apprise address: ``slack://…``, ``mailtos://…``, ``pagerduty://…``

    Raises
    ------
    Invalid
        For the field ``address``; the message never quotes it.
    """
    scheme = address.partition("://")[0].lower()
    if scheme not in SCHEMES or len(address) > outgoing_http.MAX_ADDRESS_LENGTH:
        raise Invalid(
            f"`address` must start with one of {', '.join(sorted(SCHEMES))}. Use a webhook for other services.",
            field="address",
            code="address_not_allowed",
        )
    for name, _ in parse_qsl(urlsplit(address).query, keep_blank_values=True):
        if _BLOCKED_SETTINGS.search(name):
            raise Invalid(
                f"The setting {name[:40]!r} is not allowed in `address`.",
                field="address",
                code="address_not_allowed",
            )
    with _guarded():
        plugin = None if _has_port_0(address) else _plugin(address)
        if plugin is None:
            raise Invalid(
                f"`address` is not a complete {scheme} address.", field="address", code="address_not_allowed"
            )
        try:
            _check_hosts(plugin)
        except (AddressNotAllowed, Unreachable) as error:
            raise Invalid(str(error), field="address", code="address_not_allowed") from error
    return f"{scheme}://… ({plugin.service_name})"


def of_web_address(address: str) -> str:
    """Return the address of a chat service that its own web address stands for, such as ``https://hooks.slack.com/…``.

    Empty if no allowed service has addresses like this one.
    """
    with _guarded():
        plugin = None if _has_port_0(address) else _plugin(address)
        found = "" if plugin is None else str(plugin.url(privacy=False)).partition("/?")[0]
    return found if found.partition("://")[0] in SCHEMES else ""


def _has_port_0(address: str) -> bool:
    """Return whether an address names a port that does not exist; the packages would take the default one."""
    try:
        return urlsplit(address).port == 0
    except ValueError:  # what follows a colon may be a token
        return False


def _check_hosts(plugin: Any) -> None:
    hosts = {getattr(plugin, name, None) for name in ("smtp_host", "host")} - {None, ""}
    if getattr(plugin, "smtp_host", None):
        hosts = {plugin.smtp_host}
    for host in hosts:
        if not isinstance(host, str) or ("." not in host and ":" not in host and host != "localhost"):
            continue  # many services have a token in place of the host
        try:
            found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue  # a token again, or a name that is checked when connecting
        for entry in found:
            _check_peer(ipaddress.ip_address(entry[4][0]))


def notify(address: str, title: str, text: str, *, is_success: bool) -> None:
    """Send one notification.

    Parameters
    ----------
    is_success
        Whether to show it as a success instead of a warning.

    Raises
    ------
    AddressNotAllowed
        If the address of the service is not allowed.
    Unreachable
        If the service did not accept it, with its error message, without parts of the address.
    """
    with _guarded() as complaints:
        apprise = _library()
        plugin = _plugin(address)
        if plugin is None:
            raise AddressNotAllowed("The installed version of apprise does not support this address.")
        kind = apprise.NotifyType.SUCCESS if is_success else apprise.NotifyType.WARNING
        try:
            is_accepted = plugin.notify(
                title=title, body=text, notify_type=kind, body_format=apprise.NotifyFormat.TEXT
            )
        except AddressNotAllowed:
            raise
        except Exception as error:  # a plugin may raise anything, and its message may contain the address
            raise Unreachable(f"{plugin.service_name} failed: {type(error).__name__}.") from error
    if not is_accepted:
        raise Unreachable(
            _without_secrets(
                complaints[0] if complaints else "The service did not accept the notification.", address
            )[:300]
        )


def _without_secrets(text: str, address: str) -> str:
    scheme, _, rest = address.partition("://")
    for part in sorted(_BETWEEN_PARTS.split(rest), key=len, reverse=True):
        if len(part) >= 6 and part.lower() != scheme:
            text = text.replace(part, "…")
    return text
