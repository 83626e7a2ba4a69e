"""The mail server for links that reset passwords, from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parseaddr
from urllib.parse import unquote

from loopguard_site.env import EnvironmentProblem, split_address

_PORTS = {"smtp": 587, "smtps": 465}
TIMEOUT_SECONDS = 10


def read(env: Mapping[str, str]) -> dict[str, object]:
    """Return Django's settings of mail; without `LOOPGUARD_MAIL_URL` no mail is sent.

    `smtp://` uses STARTTLS, `smtps://` TLS from the start; `?tls=off` sends in the clear, for a server on this machine.

    Raises
    ------
    EnvironmentProblem
        When a variable is wrong.
    """
    url = env.get("LOOPGUARD_MAIL_URL", "")
    if not url:
        return {"EMAIL_HOST": ""}
    parts = split_address(url)
    is_mail = parts is not None and parts.scheme in _PORTS
    if parts is None or not is_mail or not parts.hostname or parts.query not in ("", "tls=off"):
        # The address is not shown, as it may contain a password.
        raise EnvironmentProblem(
            "LOOPGUARD_MAIL_URL must be an address such as smtp://user:password@mail.example:587 or smtps://…:465."
        )
    sender = env.get("LOOPGUARD_MAIL_FROM", "")
    if "@" not in parseaddr(sender)[1]:
        raise EnvironmentProblem(
            "LOOPGUARD_MAIL_FROM must be the sender's address, such as LoopGuard <loopguard@example.org>."
        )
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or _PORTS[parts.scheme],
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_USE_TLS": parts.scheme == "smtp" and parts.query != "tls=off",
        "EMAIL_TIMEOUT": TIMEOUT_SECONDS,
        "DEFAULT_FROM_EMAIL": sender,
    }
