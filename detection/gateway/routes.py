"""Which routes of a model server are guarded, and in which protocol."""

from __future__ import annotations

from typing import Final

from detection.gateway.protocols.anthropic import Anthropic
from detection.gateway.protocols.chat import Chat
from detection.gateway.protocols.responses import Responses

ModelProtocol = Chat | Anthropic | Responses
_PROTOCOLS: Final[dict[tuple[bytes, ...], ModelProtocol]] = {
    (b"chat", b"completions"): Chat(),
    (b"messages",): Anthropic(),
    (b"responses",): Responses(),
}
"""Protocols by path suffix, regardless of the backend's kind, because many backends offer several protocols."""


def protocol_of(method: bytes, path: bytes) -> ModelProtocol | None:
    """Return the protocol of a guarded route; None for every other one."""
    segments = tuple(path.strip(b"/").split(b"/"))
    if method != b"POST":
        return None
    return next((one for end, one in _PROTOCOLS.items() if segments[-len(end) :] == end), None)


def is_harmless(method: bytes, path: bytes) -> bool:
    """Return whether a path lists models or counts tokens."""
    segments = path.rstrip(b"/").split(b"/")
    if method == b"GET":
        return b"models" in segments[-2:]
    return method == b"POST" and segments[-1] in (b"count_tokens", b"input_tokens")
