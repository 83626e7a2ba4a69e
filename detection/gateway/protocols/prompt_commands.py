"""In-chat commands in prompts: found at the end of a conversation, and kept from the model in every later request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from detection.engine import commands
from detection.gateway.protocols.answers import Message
from detection.integrations.people import is_program_text
from detection.integrations.transcripts import MessageShape, events_of_message, is_of_model, text_of_message

_LEAD: Final = re.compile(r"\[LoopGuard: [^\n]*\]\s*")
_INSTRUCTIONS: Final = ("system", "developer")


def lead_of(reply: str) -> str:
    """Return the reply to commands as it precedes an answer of the model."""
    return f"[LoopGuard: {' '.join(reply.split())}]\n\n"


def prompt_with_commands(messages: Sequence[Message], shape: MessageShape) -> tuple[Message, str] | None:
    """Return the prompt that a conversation ends with, and its text, if a person wrote it and it contains commands."""
    places = range(len(messages) - 1, -1, -1)
    last = next((at for at in places if messages[at].get("role") not in _INSTRUCTIONS), None)
    if last is None:
        return None
    before = next((messages[at] for at in range(last - 1, -1, -1) if is_of_model(messages[at])), None)
    text = _text_with_commands(messages[last], shape, before)
    return (messages[last], text) if text else None


def is_only_commands(prompt: Message) -> bool:
    """Return whether nothing remains of a prompt without its commands."""
    return _stripped(prompt) is None


def without_commands(messages: list[Message], shape: MessageShape) -> list[Message]:
    """Return a conversation without commands and their replies; the same list or messages where nothing changes.

    A prompt of nothing but commands was answered by the gateway: the answer that follows it goes, too.
    """
    has_commands: list[bool] = []
    before: Message | None = None
    for message in messages:
        has_commands.append(bool(_text_with_commands(message, shape, before)))
        before = message if is_of_model(message) else before
    if not any(has_commands):
        return messages
    out: list[Message] = []
    prompt: Message | None = None
    for message, is_command in zip(messages, has_commands, strict=True):
        if is_command:
            prompt, kept = message, _stripped(message)
        elif prompt is not None and is_of_model(message):
            kept = None if is_only_commands(prompt) else _without_lead(message)
            prompt = None
        else:
            prompt, kept = None, message
        if kept is not None:
            out.append(kept)
    return out


def _text_with_commands(message: Message, shape: MessageShape, before: Message | None) -> str:
    """Return the text of a prompt of a person that contains commands; empty for any other message.

    `before` is the last message of the model before it.
    """
    if message.get("role") != "user":
        return ""
    said = text_of_message(before) if before is not None else ""
    for event in events_of_message(message, shape, said):
        if event["type"] == "message" and "role" not in event:
            text = event["content"] or ""
            return text if commands.contains_command(text) or commands.asks_for_help(text) else ""
    return ""


def _stripped(prompt: Message) -> Message | None:
    """Return a prompt without its commands; None if nothing remains."""
    key = "content" if "content" in prompt else "parts"
    content = prompt[key]
    if isinstance(content, str):
        text = commands.without_commands(content)
        return prompt | {key: text} if text else None
    left = commands.MAX_COMMAND_CHARS
    parts: list[Any] = []
    is_empty = True
    for part in content if isinstance(content, list) else ():
        words = part.get("text") if isinstance(part, dict) else None
        text = words if isinstance(words, str) else ""
        if text and not is_program_text(text):
            kept = commands.without_commands(text, left)
            left -= len(text) + 1
            is_empty = is_empty and not kept.strip()
            if kept:
                parts.append(part if kept == text else part | {"text": kept})
        else:
            is_empty = is_empty and isinstance(words, str)
            parts.append(part)
    return None if is_empty else prompt | {key: parts}


def _without_lead(answer: Message) -> Message | None:
    """Return an answer of the model without the reply that preceded it; None if nothing remains."""
    key = "content" if "content" in answer else "parts"
    content = answer.get(key)
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
    return answer | {key: parts} if parts else None
