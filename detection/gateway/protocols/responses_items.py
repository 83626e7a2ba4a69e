"""The items of OpenAI's responses: calls, messages and usage."""

from __future__ import annotations

from typing import Any, Final

import orjson

from detection.gateway.protocols.answers import (
    Message,
    TokenUsage,
    ToolCall,
    canonical_arguments,
    text_field,
    whole_number,
)

CALL_ITEMS: Final = frozenset(
    (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
    )
)
"""Items that the client runs. Others, such as ``mcp_call``, run at the model server and cannot be held."""
NO_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def empty_response(model: str, response_id: str) -> dict[str, object]:
    """Return a response of the gateway's own, before it has content."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def message_item(answer_id: str, place: int, text: str) -> Message:
    """Return a message with a text of the gateway; `place` is its number in the response."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item_id = f"msg_{answer_id.removeprefix('resp_')}_loopguard{place}"
    return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def call_of(item: Message, place: int) -> ToolCall:
    """Read the call in an item."""
    kind = str(item.get("type"))
    if kind == "function_call":
        arguments = text_field(item, "arguments")
    elif kind == "custom_tool_call":
        arguments = text_field(item, "input")
    else:
        arguments = orjson.dumps(item.get("action") or item.get("operation") or {}, default=str).decode()
    name = text_field(item, "name") or kind.removesuffix("_call")
    return ToolCall(text_field(item, "call_id"), name, arguments, place, kind=kind)


def guard_item(item: Message) -> Message:
    """Return a call as the guard reads it."""
    if item["type"] == "function_call":
        arguments = canonical_arguments(text_field(item, "arguments"))
        return {
            "type": "function_call",
            "call_id": item.get("call_id"),
            "name": item.get("name"),
            "arguments": arguments,
        }
    call = call_of(item, 0)
    return {
        "type": "function_call",
        "call_id": call.id or None,
        "name": call.name,
        "arguments": call.arguments,
    }


def usage_of(usage: Any) -> TokenUsage:
    """Read the usage of a response."""
    if not isinstance(usage, dict):
        return TokenUsage()
    details = usage.get("input_tokens_details")
    return TokenUsage(
        whole_number(usage.get("input_tokens")),
        whole_number(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        whole_number(usage.get("output_tokens")),
    )
