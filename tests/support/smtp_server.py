"""A real SMTP server in a thread that keeps what it was handed, and a certificate of its own."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope


@dataclass
class Mailbox:
    """`refusal` is answered instead of taking a message."""

    port: int = 0
    refusal: str = ""
    envelopes: list[Envelope] = field(default_factory=list)

    @property
    def messages(self) -> list[EmailMessage]:
        return [
            message_from_bytes(one.original_content or b"", policy=policy.default) for one in self.envelopes
        ]

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:  # noqa: N802  (the server's name for it)
        if self.refusal:
            return self.refusal
        self.envelopes.append(envelope)
        return "250 OK"


class _AnyPort(Controller):
    """Takes a free port, and says which before anybody connects."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@contextmanager
def receiving_mail(tls: ssl.SSLContext | None = None) -> Iterator[Mailbox]:
    """Receive on a free port of 127.0.0.1; with `tls` only after STARTTLS."""
    mailbox = Mailbox()
    controller = _AnyPort(
        mailbox, hostname="127.0.0.1", port=0, tls_context=tls, require_starttls=tls is not None
    )
    controller.start()
    mailbox.port = controller.port
    try:
        yield mailbox
    finally:
        controller.stop()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a certificate for 127.0.0.1 that nobody has signed but itself; the file, and a server's context with it."""
    file, key = folder / "mail.pem", folder / "mail.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(file),
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, key)
    return file, context
