"""The command of Connect: turns its code into a key that has only the scope which this needs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopguard_client import credentials
from loopguard_client.credentials import Credentials
from loopguard_client.transport import Transport

EXCHANGE_SECONDS: Final = 10.0
OPENTELEMETRY: Final = "opentelemetry"
IMPORTS: Final = "imports"
"""The integrations whose keys can only send: they are not those of hooks and clients."""


@dataclass(frozen=True, slots=True)
class Connected:
    """What a code became: a key, its name on the server, and what it is for."""

    credentials: Credentials
    name: str
    integration: str


def exchange(url: str, code: str) -> Connected:
    """Turn a code into a key; the server does that once.

    Raises
    ------
    ValueError
        The server does not accept the code; the text is the server's.
    NoAnswer
        The server does not answer.
    """
    transport = Transport(url, None, "loopguard-client")
    body = {"code": code, "machine": platform.node()[:255]}
    answer = transport.send_here("POST", "/install-codes/exchange", body, seconds=EXCHANGE_SECONDS)
    document = answer.document
    if answer.status != 201:
        raise ValueError(
            f"{document.get('detail') or f'{url} answered {answer.status}.'} Nothing was changed."
        )
    return Connected(
        Credentials(transport.url, str(document["key"])), str(document["name"]), str(document["integration"])
    )


def write_exporter_settings(found: Credentials) -> Path:
    """Write the variables that exporters of OpenTelemetry read to a file of this account only, and return it."""
    credentials.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    file = credentials.folder() / "opentelemetry.env"
    lines = (
        f"OTEL_EXPORTER_OTLP_ENDPOINT={found.url}/api/v1/otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        f"OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20{found.key}",
        "OTEL_TRACES_EXPORTER=otlp",
        "OTEL_METRICS_EXPORTER=none",
        "OTEL_LOGS_EXPORTER=none",
    )
    credentials.write_private(file, "\n".join((*lines, "")))
    return file
