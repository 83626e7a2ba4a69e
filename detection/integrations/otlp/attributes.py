"""The attributes of agents, by all names in use.

They are those of OpenTelemetry's GenAI conventions, OpenInference, Traceloop and the AI SDK. The conventions have
changed their names, too. An attribute is therefore looked up under every name that an instrumentation has used, the
current one first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from detection.integrations.otlp.messages import SpanMessage, parsed
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
_FINISH_REASONS: Final = ("gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason")


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


def last_prompt(messages: Sequence[SpanMessage]) -> str:
    """Return the text of a person that a model call ends with; empty if it ends with anything else."""
    if not messages or messages[-1].role != "user":
        return ""
    before = messages[-2].text if len(messages) > 1 and messages[-2].role == "assistant" else ""
    text = messages[-1].text
    return "" if is_program_text(text, before) else text


def answer(attributes: Attributes, messages: Sequence[SpanMessage]) -> str | None:
    """Return the text of a model's answer, empty if it said nothing; None if it called tools or was not recorded."""
    found = "\n".join(filter(None, (message.text for message in messages)))
    has_more = any(message.calls or message.results or message.says_more for message in messages)
    is_silent = bool(messages) and not has_more and not _ends_with_call(attributes)
    return found or ("" if is_silent else None)


def _ends_with_call(attributes: Attributes) -> bool:
    """Return whether the finish reason of an answer without a text says that it called tools."""
    reasons = [parsed(attributes.get(name)) for name in _FINISH_REASONS]
    return any("tool" in str(reason) or "function" in str(reason) for reason in reasons if reason is not None)
