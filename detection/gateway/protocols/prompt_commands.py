"""In-chat commands in prompts: found at the end of a conversation, and kept from the model in every later request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from detection.engine import commands
from detection.gateway.protocols.answers import Message
from detection.integrations.transcripts import NOT_PROMPTS, MessageShape, events_of_message

_LEAD: Final = re.compile(r"\[LoopGuard: [^\n]*\]\s*")
_INSTRUCTIONS: Final = ("system", "developer")


def lead_of(reply: str) -> str:
    """Return the reply to commands as it precedes an answer of the model."""
    return f"[LoopGuard: {' '.join(reply.split())}]\n\n"


def prompt_with_commands(messages: Sequence[Message], shape: MessageShape) -> Message | None:
    """Return the prompt that a conversation ends with, if it contains commands."""
    last = next((one for one in reversed(messages) if one.get("role") not in _INSTRUCTIONS), None)
    return last if last is not None and _has_commands(last, shape) else None


def is_only_commands(prompt: Message) -> bool:
    """Return whether nothing remains of a prompt without its commands."""
    return _stripped(prompt) is None


def without_commands(messages: list[Message], shape: MessageShape) -> list[Message]:
    """Return a conversation without commands and their replies; the same list or messages where nothing changes.

    A prompt of nothing but commands was answered by the gateway: the answer that follows it goes, too.
    """
    if not any(_has_commands(message, shape) for message in messages):
        return messages
    out: list[Message] = []
    prompt: Message | None = None
    for message in messages:
        if _has_commands(message, shape):
            prompt, kept = message, _stripped(message)
        elif prompt is not None and message.get("role") == "assistant":
            kept = None if is_only_commands(prompt) else _without_lead(message)
            prompt = None
        else:
            prompt, kept = None, message
        if kept is not None:
            out.append(kept)
    return out


def _has_commands(message: Message, shape: MessageShape) -> bool:
    if message.get("role") != "user":
        return False
    prompts = (one["content"] for one in events_of_message(message, shape) if one["type"] == "message")
    return any(commands.contains_command(text) or commands.asks_for_help(text) for text in prompts)


def _stripped(prompt: Message) -> Message | None:
    """Return a prompt without its commands; None if nothing remains."""
    content = prompt["content"]
    if isinstance(content, str):
        text = commands.without_commands(content)
        return prompt | {"content": text} if text else None
    left = commands.MAX_COMMAND_CHARS
    parts: list[Any] = []
    is_empty = True
    for part in content:
        words = part.get("text") if isinstance(part, dict) else None
        text = words if isinstance(words, str) else ""
        if text and not text.lstrip().startswith(NOT_PROMPTS):
            kept = commands.without_commands(text, left)
            left -= len(text) + 1
            is_empty = is_empty and not kept.strip()
            if kept:
                parts.append(part if kept == text else part | {"text": kept})
        else:
            is_empty = is_empty and isinstance(words, str)
            parts.append(part)
    return None if is_empty else prompt | {"content": parts}


def _without_lead(answer: Message) -> Message | None:
    """Return an answer of the model without the reply that preceded it; None if nothing remains."""
    content = answer.get("content")
    if isinstance(content, str):
        text = _LEAD.sub("", content, count=1) if _LEAD.match(content) else content
        if text == content:
            return answer
        return answer | {"content": text or None} if text or answer.get("tool_calls") else None
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return answer
    first = content[0].get("text")
    if not isinstance(first, str) or not (found := _LEAD.match(first)):
        return answer
    rest = first[found.end() :]
    parts = [content[0] | {"text": rest}, *content[1:]] if rest else content[1:]
    return answer | {"content": parts} if parts else None
