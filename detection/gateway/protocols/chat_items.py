"""Calls and usage in chat completions, whole and in streams."""

from __future__ import annotations

from typing import Any, Final

from detection.gateway.protocols.answers import Message, TokenUsage, ToolCall, text_field, whole_number
from detection.integrations.text_protocols import call_of_answer, text_of_call

TEXT_CALL: Final = "text"
"""Kind of a call that the model has made in a protocol of plain text."""


def text_call(answer: str, instructions: str) -> ToolCall | None:
    """Return the call in the text of an answer; see `text_protocols.call_of_answer`."""
    found = call_of_answer(answer, instructions)
    return ToolCall(found.call_id, found.tool, found.arguments, kind=TEXT_CALL) if found else None


def read_call(call: Message, place: int, choice: int) -> ToolCall:
    """Read a call of an answer."""
    kind = "custom" if isinstance(call.get("custom"), dict) else "function"
    part = call.get(kind)
    arguments = text_field(part, "input" if kind == "custom" else "arguments")
    return ToolCall(text_field(call, "id"), text_field(part, "name"), arguments, place, choice, kind)


def call_document(call: ToolCall, arguments: str) -> Message:
    """Return a call as part of an answer; one that was made in text is the whole answer."""
    if call.kind == TEXT_CALL:
        return {"role": "assistant", "content": text_of_call(call.name, arguments)}
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def reasoning_of(message: dict[str, object]) -> str:
    """Return the reasoning in a message or a delta; model servers name it in two ways."""
    return text_field(message, "reasoning_content") or text_field(message, "reasoning")


def usage_of(usage: Any) -> TokenUsage:
    """Read the usage of a response."""
    if not isinstance(usage, dict):
        return TokenUsage()
    details = usage.get("prompt_tokens_details")
    return TokenUsage(
        whole_number(usage.get("prompt_tokens")),
        whole_number(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        whole_number(usage.get("completion_tokens")),
    )
