"""Which routes of a model server are guarded, and in which protocol."""

from __future__ import annotations

import re
from typing import Final

from detection.gateway.protocols.anthropic import Anthropic
from detection.gateway.protocols.chat import Chat
from detection.gateway.protocols.gemini import Gemini
from detection.gateway.protocols.responses import Responses

ModelProtocol = Chat | Anthropic | Responses | Gemini
_PROTOCOLS: Final[dict[tuple[bytes, ...], ModelProtocol]] = {
    (b"chat", b"completions"): Chat(),
    (b"messages",): Anthropic(),
    (b"responses",): Responses(),
}
"""Protocols by path suffix, regardless of the backend's kind, because many backends offer several protocols."""


_GEMINI: Final = re.compile(rb"(?:models|endpoints)/([^/:]{1,256}):(g|streamG)enerateContent")
_AS_EVENTS: Final = re.compile(rb"(?:^|&)(?:\$|%24)?alt=sse(?:&|$)")


def protocol_of(method: bytes, path: bytes, query: bytes = b"") -> ModelProtocol | None:
    """Return the protocol of a guarded route; None for every other one."""
    segments = tuple(path.strip(b"/").split(b"/"))
    if method != b"POST":
        return None
    if found := _GEMINI.fullmatch(b"/".join(segments[-2:])):
        model = found[1].decode("latin-1")
        is_stream, is_events = found[2] == b"streamG", bool(_AS_EVENTS.search(query))
        return Gemini(model, is_stream=is_stream and is_events, is_list=is_stream and not is_events)
    return next((one for end, one in _PROTOCOLS.items() if segments[-len(end) :] == end), None)


def is_harmless(method: bytes, path: bytes) -> bool:
    """Return whether a path lists models or counts tokens."""
    segments = path.rstrip(b"/").split(b"/")
    if method == b"GET":
        return b"models" in segments[-2:]
    is_count = segments[-1] in (b"count_tokens", b"input_tokens") or segments[-1].endswith(b":countTokens")
    return method == b"POST" and is_count
