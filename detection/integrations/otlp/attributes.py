"""The attributes of agents, by all names in use.

They are those of OpenTelemetry's GenAI conventions, OpenInference, Traceloop and the AI SDK. The conventions have
changed their names, too. An attribute is therefore looked up under every name that an instrumentation has used, the
current one first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from detection.integrations.people import is_program_text

Attributes = Mapping[str, Any]

SESSION: Final = (
    "gen_ai.conversation.id",
    "session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "traceloop.association.properties.conversation_id",
    "ai.telemetry.metadata.sessionId",
)
AGENT: Final = ("gen_ai.agent.name", "agent.name", "agent_name", "ai.telemetry.functionId")
TOOL: Final = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name", "ai.toolCall.name")
CALL_ID: Final = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
ARGUMENTS: Final = (
    "gen_ai.tool.call.arguments",
    "tool_arguments",
    "traceloop.entity.input",
    "input.value",
    "ai.toolCall.args",
)
CWD: Final = ("process.working_directory", "working_directory", "cwd")
RESULT: Final = (
    "gen_ai.tool.call.result",
    "tool_response",
    "traceloop.entity.output",
    "output.value",
    "ai.toolCall.result",
)
BACKEND: Final = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
MODEL: Final = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
INPUT_TOKENS: Final = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)
OUTPUT_TOKENS: Final = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
)
CACHED_TOKENS: Final = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
    "llm.token_count.prompt_details.cache_read",
)
CACHE_WRITE_TOKENS: Final = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.details.cache_write_tokens",
    "llm.token_count.prompt_details.cache_write",
)
COST: Final = ("operation.cost", "gen_ai.usage.cost", "llm.cost.total")
MAX_MESSAGES: Final = 1_000
"""Maximum number of messages of one model call that are read, if each has its own attributes."""
_INPUTS: Final = ("gen_ai.input.messages", "ai.prompt.messages")
_FLAT_INPUTS: Final = (
    ("llm.input_messages.{}.message.role", "llm.input_messages.{}.message.content"),
    ("gen_ai.prompt.{}.role", "gen_ai.prompt.{}.content"),
)
_FLAT_OUTPUTS: Final = (
    "llm.output_messages.{}.message.content",
    "gen_ai.completion.{}.content",
    "ai.response.text",
)
_FLAT_CALLS: Final = (
    "llm.output_messages.0.message.tool_calls.",
    "gen_ai.completion.0.tool_calls.",
    "ai.response.toolCalls",
)
_FINISH_REASONS: Final = ("gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason")
_TEXT_TYPES: Final = (None, "text", "input_text", "output_text")


def text(attributes: Attributes, names: Iterable[str]) -> str:
    """Return the first of these attributes that is a text; empty without one."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def first(attributes: Attributes, names: Iterable[str]) -> Any:
    """Return the first of these attributes that is present, otherwise None."""
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def number(attributes: Attributes, names: Iterable[str]) -> float:
    """Return the first of these attributes that is a number, not negative; 0 without one."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53:
            return value
    return 0


def parsed(value: Any) -> Any:
    """Return the value of a JSON text, anything else unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def last_prompt(attributes: Attributes) -> str:
    """Return the text of a person that a model call ends with; empty if it ends with anything else."""
    messages = parsed(first(attributes, _INPUTS))
    if isinstance(messages, list) and messages:
        ends = [one if isinstance(one, dict) else {} for one in messages[-2:]]
        said = [(one.get("role"), message_text(one)) for one in ends]
        return _prompt_of(said[-1], said[0])
    for role, content in _FLAT_INPUTS:
        last_index = next((at for at in range(MAX_MESSAGES) if role.format(at) not in attributes), 0) - 1
        if last_index >= 0:
            places = (last_index, max(0, last_index - 1))
            last, before = (
                (attributes.get(role.format(at)), _plain(attributes.get(content.format(at)))) for at in places
            )
            return _prompt_of(last, before)
    return ""


def _prompt_of(last: tuple[Any, str], before: tuple[Any, str]) -> str:
    """Return the text of the last message, each given as role and text, if a person wrote it."""
    (role, text), (role_before, text_before) = last, before
    said = text_before if role_before == "assistant" else ""
    return text if role == "user" and not is_program_text(text, said) else ""


def answer(attributes: Attributes) -> str | None:
    """Return the text of a model's answer, empty if it said nothing; None if it called tools or was not recorded."""
    messages = parsed(attributes.get("gen_ai.output.messages"))
    if isinstance(messages, list):
        said = [one for one in messages if isinstance(one, dict)]
        found = "\n".join(filter(None, map(message_text, said)))
        is_silent = bool(said) and not any(map(_has_more_than_text, said)) and not _has_called(attributes)
        return found or ("" if is_silent else None)
    texts = [_plain(attributes[name.format(0)]) for name in _FLAT_OUTPUTS if name.format(0) in attributes]
    found = next(filter(None, texts), "")
    return found or ("" if texts and not _has_called(attributes) else None)


def _has_more_than_text(message: Mapping[str, Any]) -> bool:
    parts = message.get("parts", message.get("content"))
    return isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") not in _TEXT_TYPES for part in parts
    )


def _has_called(attributes: Attributes) -> bool:
    """Return whether the attributes of an answer without a text say that it called tools, or its finish reason does."""
    reasons = [parsed(attributes.get(name)) for name in _FINISH_REASONS]
    if any("tool" in str(reason) or "function" in str(reason) for reason in reasons if reason is not None):
        return True
    return any(name.startswith(_FLAT_CALLS) for name in attributes)


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message with parts, or with a content; empty for calls and results of tools."""
    parts = message.get("parts", message.get("content"))
    return _plain(parts)


def _plain(value: Any) -> str:
    value = parsed(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    texts = []
    for part in value:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in _TEXT_TYPES:
            found = part.get("content") or part.get("text")
            texts.append(found if isinstance(found, str) else "")
    return "\n".join(filter(None, texts))
