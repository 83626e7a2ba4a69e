"""Words for the integration through which a session arrived."""

from __future__ import annotations

from typing import Final

from detection.integrations.hosts import HOSTS

_WORDS: Final = {
    "guard": "API, asked before each call",
    "events": "API, events",
    "client": "client",
    "mcp": "MCP proxy",
    "litellm": "LiteLLM guardrail",
    "otlp": "OpenTelemetry",
}


def integration_words(integration: str, backend: str = "") -> str:
    """Return words for the integration of a session, empty if it is unknown.

    Parameters
    ----------
    integration
        As `Session.integration` has it.
    backend
        Backend of the session; the gateway's backend if it came through the gateway.
    """
    kind, _, name = integration.partition("/")
    if kind == "hooks":
        return f"hook of {HOSTS[name].title if name in HOSTS else name}"
    if kind == "import":
        return f"import of {HOSTS[name].title if name in HOSTS else name}"
    if kind == "gateway":
        return f"gateway, backend {backend}" if backend else "gateway"
    return _WORDS.get(integration, integration)
