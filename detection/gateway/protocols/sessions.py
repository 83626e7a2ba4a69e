"""The name of a conversation's session: LoopGuard's header, the agent's own id, or how the conversation begins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, Final

import orjson

from detection.gateway.protocols.answers import ToolCall, canonical_arguments, dicts, text_field
from detection.integrations.labels import NO_LABELS, LabelError, Labels, labels_of_headers
from detection.integrations.session_names import bounded, session_name
from detection.integrations.transcripts import is_of_model
from detection.strict_json import compact

OWN_HEADER: Final = "loopguard-session"
_HEADERS: Final = (
    "x-litellm-session-id",
    "x-litellm-trace-id",
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
)
_CODEX_HEADERS: Final = ("session-id", "session_id", "thread-id")
_AGENTS: Final = {
    "claude-cli": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "copilot": "copilot",
    "geminicli": "gemini-cli",
}
"""Coding agents by the beginning of their `User-Agent`, under the names that their hooks have."""
_PARENT_HEADERS: Final = ("loopguard-parent-session", "x-parent-session-id")


def given_name(header: Callable[[str], str], request: Mapping[str, Any]) -> str:
    """Return the id that the client gives to the conversation, or empty.

    Parameters
    ----------
    header
        Returns a header of the request by its name, or empty.
    """
    names: tuple[str, ...] = (OWN_HEADER, *_HEADERS)
    if header("user-agent").lower().startswith("codex") or header("originator").lower().startswith("codex"):
        names = (OWN_HEADER, *_CODEX_HEADERS, *_HEADERS)
    found = next((value for name in names if (value := header(name))), "") or _of_body(request)
    return session_name(found) if found else ""


def parent_name(header: Callable[[str], str]) -> str:
    """Return the session that this one belongs to, or empty."""
    return bounded(next((value for name in _PARENT_HEADERS if (value := header(name))), ""))


def agent_name(header: Callable[[str], str]) -> str:
    """Return the name of the agent: from LoopGuard's header, or from a coding agent's user agent."""
    if given := header("loopguard-agent"):
        return bounded(given, 128)
    program = header("user-agent").lower()
    return next((name for start, name in _AGENTS.items() if program.startswith(start)), "")


def labels(header: Callable[[str], str]) -> Labels:
    """Return the tags and metadata of the session; none where the headers are not valid, which ends no request."""
    try:
        return labels_of_headers(lambda name: header(name.lower()))
    except LabelError:
        return NO_LABELS


def is_retry(header: Callable[[str], str]) -> bool:
    """Return whether an SDK marks a request as one that it sends again. The AI SDK and many others do not."""
    return header("x-stainless-retry-count") not in ("", "0")


def printable(value: Any, characters: int) -> str:
    """Return a name in a form that can be stored."""
    return bounded(value, characters) if isinstance(value, str) else ""


def kept_conversation(request: Mapping[str, Any]) -> str:
    """Return the id of the conversation that OpenAI's model server keeps, or empty."""
    conversation = request.get("conversation")
    return conversation if isinstance(conversation, str) else text_field(conversation, "id")


def _of_body(request: Mapping[str, Any]) -> str:
    """Return OpenAI's `conversation`, or the session in Anthropic's `metadata.user_id`, JSON from Claude Code."""
    if conversation := kept_conversation(request):
        return conversation
    user = text_field(request.get("metadata"), "user_id")
    if user.startswith("{"):
        try:
            return text_field(orjson.loads(user), "session_id")
        except ValueError:
            return ""
    return user.rpartition("_session_")[2] if "_session_" in user else ""


def beginning_of(key: str, system: str, messages: list[dict[str, object]]) -> hashlib.blake2b:
    """Return the digest of how a conversation begins. Its first prompt may be as large as the request."""
    prompt = next((m for m in messages if m.get("role") == "user"), {})
    digest = hashlib.blake2b(digest_size=12)
    for part in (key, system, _text(prompt)):
        _add(digest, part)
    return digest


def derived_name(beginning: hashlib.blake2b, first_call: ToolCall | None) -> str:
    """Return a name from the beginning of a conversation; empty as long as it has no call.

    The first call distinguishes two conversations that begin with the same prompt, because model servers give it a
    unique id.
    """
    if first_call is None:
        return ""
    digest = beginning.copy()
    for part in (first_call.id, first_call.name, canonical_arguments(first_call.arguments)):
        _add(digest, part)
    return f"chat-{digest.hexdigest()}"


def request_name(beginning: hashlib.blake2b, messages: list[dict[str, object]]) -> str:
    """Return a name that equal requests have, for requests whose answers no later request continues.

    What follows the first message of the model is no part of it: the complaint of a program about that answer.
    """
    digest = beginning.copy()
    _add(digest, compact([*takewhile(lambda message: not is_of_model(message), messages)]))
    return f"requests-{digest.hexdigest()}"


def _add(digest: hashlib.blake2b, part: str) -> None:
    digest.update(part.encode("utf-8", "surrogatepass"))
    digest.update(b"\x00")


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return (
        content
        if isinstance(content, str)
        else "\n".join(text_field(part, "text") for part in dicts(content))
    )
