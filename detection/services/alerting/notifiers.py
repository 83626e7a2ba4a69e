"""Hands messages to notification services (chat, e-mail, paging) through the apprise library, imported at first use.

Apprise opens its own connections, so they are checked where no redirect, name or setting can get round it: an audit hook
of the interpreter sees every connect of the sending thread, with the address as it is, and refuses as `outgoing` would.
Only services that need nothing of this machine are open; settings that read local files or switch checks off are refused,
and so is mail without encryption to anywhere but the networks that the deployment allows.
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
from detection.services.outgoing_http import Refused, Unreachable

SCHEMES = frozenset(
    {
        "betterstack", "dingtalk", "discord", "feishu", "flock", "gchat", "gotify", "gotifys", "ilert",
        "incidentio", "lark", "line", "mailto", "mailtos", "matrix", "matrixs", "mmost", "mmosts", "msteams",
        "ntfy", "ntfys", "opsgenie", "pagerduty", "pagertree", "pbul", "pover", "rocket", "rockets", "signl4",
        "slack", "splunk", "squadcast", "tgram", "twilio", "victorops", "webex", "workflow", "workflows",
        "wxteams", "zulip",
    }
)  # fmt: skip
_REFUSED_SETTINGS = re.compile(
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
        raise Refused("Only network addresses may be spoken to.")
    try:
        parsed = ipaddress.ip_address(str(address[0]))
    except ValueError:
        raise Refused("A connection to a name that was not resolved is refused.") from None
    _check_peer(parsed)


def _check_peer(address: outgoing_http.Address) -> None:
    outgoing_http.check_address(address)
    if getattr(_guard, "is_bare_mail", False) and not outgoing_http.is_allowed_network(address):
        raise Refused("Mail without encryption is refused; use mailtos://, or mode=starttls.")


@contextmanager
def _guarded() -> Iterator[list[str]]:
    """Check every connection of this thread, and collect what apprise complains of, instead of logging it."""
    global _is_hooked  # (an audit hook cannot be taken off again, so it is put on once)
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
    logger.propagate = False  # its lines may hold what is secret in an address
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
    """Make the service of an address, for use inside `_guarded`."""
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
    """Check an address as at saving, and return what may be shown of it.

    Parameters
    ----------
    address
        An apprise address: ``slack://…``, ``mailtos://…``, ``pagerduty://…``

    Raises
    ------
    Invalid
        For the field ``address``; the reason never quotes the address.
    """
    scheme = address.partition("://")[0].lower()
    if scheme not in SCHEMES or len(address) > outgoing_http.MAX_ADDRESS_LENGTH:
        raise Invalid(
            f"Services are {', '.join(sorted(SCHEMES))}; anything else can be reached by a webhook.",
            field="address",
            code="address_refused",
        )
    for name, _ in parse_qsl(urlsplit(address).query, keep_blank_values=True):
        if _REFUSED_SETTINGS.search(name):
            raise Invalid(f"The setting {name[:40]!r} is refused.", field="address", code="address_refused")
    with _guarded():
        plugin = _plugin(address)
        if plugin is None:
            raise Invalid(
                f"This is not a complete {scheme} address.", field="address", code="address_refused"
            )
        try:
            _check_hosts(plugin)
        except (Refused, Unreachable) as error:
            raise Invalid(str(error), field="address", code="address_refused") from error
    return f"{scheme}://… ({plugin.service_name})"


def _check_hosts(plugin: Any) -> None:
    hosts = {getattr(plugin, name, None) for name in ("smtp_host", "host")} - {None, ""}
    if getattr(plugin, "smtp_host", None):
        hosts = {plugin.smtp_host}
    for host in hosts:
        if not isinstance(host, str) or ("." not in host and ":" not in host and host != "localhost"):
            continue  # many services keep a token in the place of the host
        try:
            found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue  # a token again, or a name that will be looked at when it is spoken to
        for entry in found:
            _check_peer(ipaddress.ip_address(entry[4][0]))


def notify(address: str, title: str, text: str, *, is_good_news: bool) -> None:
    """Hand one message over.

    Raises
    ------
    Refused
        When the service's address may not be spoken to.
    Unreachable
        When the service did not take it, with its complaint, freed of parts of the address.
    """
    with _guarded() as complaints:
        apprise = _library()
        plugin = _plugin(address)
        if plugin is None:
            raise Refused("The address is not complete any more for the installed version of the library.")
        kind = apprise.NotifyType.SUCCESS if is_good_news else apprise.NotifyType.WARNING
        try:
            is_taken = plugin.notify(
                title=title, body=text, notify_type=kind, body_format=apprise.NotifyFormat.TEXT
            )
        except Refused:
            raise
        except Exception as error:  # a plugin may raise anything, and its text may hold the address
            raise Unreachable(f"{plugin.service_name} failed: {type(error).__name__}.") from error
    if not is_taken:
        raise Unreachable(
            _without_secrets(complaints[0] if complaints else "It was not taken.", address)[:300]
        )


def _without_secrets(text: str, address: str) -> str:
    scheme, _, rest = address.partition("://")
    for part in sorted(_BETWEEN_PARTS.split(rest), key=len, reverse=True):
        if len(part) >= 6 and part.lower() != scheme:
            text = text.replace(part, "…")
    return text
